#include "support/file_calls.h"

#include <errno.h>
#include <fcntl.h>

static const shard_file_calls *system_calls;
static file_call_hook *hook;

static int simple(ssize_t answer, int result_of_leaving)
{
    return answer == CALL_FAIL ? -1 : result_of_leaving;
}

#define ASK(...) ssize_t answer = hook(&(file_call){__VA_ARGS__})

static int watched_open(const char *path, int flags, mode_t mode)
{
    ASK(CALL_OPEN, -1, .path = path, .flags = flags);
    return answer == CALL_MAKE ? system_calls->open(path, flags, mode) : simple(answer, -1);
}

static ssize_t watched_pread(int descriptor, void *data, size_t bytes, off_t offset)
{
    ASK(CALL_PREAD, descriptor, .bytes = bytes, .offset = offset);
    if (answer == CALL_FAIL)
        return -1;
    return system_calls->pread(descriptor, data, answer >= 0 ? (size_t)answer : bytes, offset);
}

static ssize_t watched_pwrite(int descriptor, const void *data, size_t bytes, off_t offset)
{
    ASK(CALL_PWRITE, descriptor, .data = data, .bytes = bytes, .offset = offset);
    if (answer == CALL_FAIL)
        return -1;
    return system_calls->pwrite(descriptor, data, answer >= 0 ? (size_t)answer : bytes, offset);
}

static int watched_fallocate(int descriptor, int mode, off_t offset, off_t bytes)
{
    ASK(CALL_FALLOCATE, descriptor, .bytes = (size_t)bytes);
    return answer == CALL_MAKE ? system_calls->fallocate(descriptor, mode, offset, bytes) : simple(answer, 0);
}

static int watched_ftruncate(int descriptor, off_t bytes)
{
    ASK(CALL_FTRUNCATE, descriptor, .bytes = (size_t)bytes);
    return answer == CALL_MAKE ? system_calls->ftruncate(descriptor, bytes) : simple(answer, 0);
}

static int watched_fchmod(int descriptor, mode_t mode)
{
    ASK(CALL_FCHMOD, descriptor);
    return answer == CALL_MAKE ? system_calls->fchmod(descriptor, mode) : simple(answer, 0);
}

static int watched_fsync(int descriptor)
{
    ASK(CALL_FSYNC, descriptor);
    return answer == CALL_MAKE ? system_calls->fsync(descriptor) : simple(answer, 0);
}

/* The descriptor is closed by a call that fails, too. */
static int watched_close(int descriptor)
{
    ASK(CALL_CLOSE, descriptor);
    int error = errno, result = system_calls->close(descriptor);
    errno = answer == CALL_FAIL ? error : errno;
    return answer == CALL_FAIL ? -1 : result;
}

static int watched_rename(const char *from, const char *to)
{
    ASK(CALL_RENAME, -1, .path = from, .to = to);
    return answer == CALL_MAKE ? system_calls->rename(from, to) : simple(answer, 0);
}

static int watched_unlink(const char *path)
{
    ASK(CALL_UNLINK, -1, .path = path);
    return answer == CALL_MAKE ? system_calls->unlink(path) : simple(answer, 0);
}

static int watched_mkdir(const char *path, mode_t mode)
{
    ASK(CALL_MKDIR, -1, .path = path);
    return answer == CALL_MAKE ? system_calls->mkdir(path, mode) : simple(answer, 0);
}

static int watched_rmdir(const char *path)
{
    ASK(CALL_RMDIR, -1, .path = path);
    return answer == CALL_MAKE ? system_calls->rmdir(path) : simple(answer, 0);
}

static int watched_flock(int descriptor, int operation)
{
    ASK(CALL_FLOCK, descriptor);
    return answer == CALL_MAKE ? system_calls->flock(descriptor, operation) : simple(answer, 0);
}

static const shard_file_calls watched = {
    .open = watched_open,
    .pread = watched_pread,
    .pwrite = watched_pwrite,
    .fallocate = watched_fallocate,
    .ftruncate = watched_ftruncate,
    .fchmod = watched_fchmod,
    .fsync = watched_fsync,
    .close = watched_close,
    .rename = watched_rename,
    .unlink = watched_unlink,
    .mkdir = watched_mkdir,
    .rmdir = watched_rmdir,
    .flock = watched_flock,
};

bool file_calls_are_direct(int descriptor)
{
    return descriptor >= 0 && fcntl(descriptor, F_GETFL) & O_DIRECT;
}

ssize_t file_calls_without_sync(const file_call *call)
{
    return call->kind == CALL_FSYNC ? CALL_LEAVE : CALL_MAKE;
}

void file_calls_watch(file_call_hook *given)
{
    if (!system_calls)
        system_calls = shard_file_calls_used;
    hook = given;
    shard_file_calls_used = given ? &watched : system_calls;
}
