#include "checkpoint/file.h"

#include "base/crc64.h"
#include "base/math.h"
#include "base/memory.h"
#include "checkpoint/summing.h"
#include "device/device.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* Bytes of one system call at most. */
#define CHUNK ((int64_t)16 << 20)
/* ... of one whose checksum is computed: it is in the processor's cache then. */
#define SUMMED_CHUNK ((int64_t)256 << 10)
#define BOUNCE ((int64_t)4 << 20)
/* Smaller transfers go through the page cache. */
#define DIRECT_LEAST ((int64_t)256 << 10)
/* The alignment of memory for direct transfers: that of most disks' sectors. Of disks with larger ones a transfer from memory
 * that is not aligned to them fails with EINVAL, and goes through the page cache. */
#define MEMORY_UNIT 512
/* After so many interruptions room on the disk is not reserved any more: on tmpfs each undoes what it has reserved so far. */
#define RESERVE_MOST 10
/* The number of symbolic links that are followed, as by the system. */
#define LINKS_MOST 40

static int open_file(const char *path, int flags, mode_t mode)
{
    return open(path, flags, mode);
}

static const shard_file_calls system_calls = {
    .open = open_file,
    .pread = pread,
    .pwrite = pwrite,
    .fallocate = fallocate,
    .ftruncate = ftruncate,
    .fchmod = fchmod,
    .fsync = fsync,
    .close = close,
    .rename = rename,
    .unlink = unlink,
    .mkdir = mkdir,
    .rmdir = rmdir,
    .flock = flock,
};

const shard_file_calls *shard_file_calls_used = &system_calls;

static shard_status fail(const char *doing, const char *path)
{
    int error = errno;
    const char *advice = error == ENOSPC || error == EDQUOT ? "; make room there or save elsewhere"
                         : error == EFBIG                   ? "; see ulimit -f and the file system's largest file"
                                                            : "";
    return shard_error(SHARD_ERROR_IO, "cannot %s %s: %s%s", doing, path, strerror(error), advice);
}

static int open_with(const char *path, int flags, mode_t mode)
{
    int descriptor;
    do
        descriptor = shard_file_calls_used->open(path, flags | O_CLOEXEC, mode);
    while (descriptor < 0 && errno == EINTR);
    return descriptor;
}

static int open_again(const char *path, int flags)
{
    return open_with(path, flags, 0);
}

/* Direct writes must share no block of the page cache with others. */
static int64_t direct_unit(int descriptor)
{
    struct stat status;
    int64_t page = sysconf(_SC_PAGESIZE), block = fstat(descriptor, &status) == 0 ? status.st_blksize : 0;
    bool usable = block > page && block <= BOUNCE / 4 && (block & (block - 1)) == 0;
    return usable ? block : page;
}

static void use(shard_file *file, const char *path, int descriptor, int direct)
{
    *file = (shard_file){.path = path, .descriptor = descriptor, .direct = direct, .unit = direct_unit(descriptor)};
}

shard_status shard_file_open(shard_file *file, const char *path, int64_t *bytes)
{
    int descriptor = open_again(path, O_RDONLY | O_NONBLOCK);
    struct stat status;
    if (descriptor < 0 || fstat(descriptor, &status) != 0) {
        fail("open", path);
        if (descriptor >= 0)
            shard_file_calls_used->close(descriptor);
        return shard_last_status();
    }
    use(file, path, descriptor, open_again(path, O_RDONLY | O_DIRECT | O_NONBLOCK));
    if (!S_ISREG(status.st_mode)) {
        shard_error(SHARD_ERROR_IO, "cannot read %s: it is not a regular file", path);
        shard_file_close(file);
        return shard_last_status();
    }
    posix_fadvise(descriptor, 0, 0, POSIX_FADV_SEQUENTIAL);
    *bytes = status.st_size;
    file->opened = status;
    return SHARD_OK;
}

static bool same_time(struct timespec a, struct timespec b)
{
    return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

/* Without checksums the time of the last change of the file's status counts, too: it also shows a write after which the time of
 * modification was set back. It changes when the file's last name is removed: another file has then taken its place, and the open
 * one is complete. And it changes with permissions and owners. */
static bool was_written(const shard_file *file, const struct stat *now)
{
    const struct stat *opened = &file->opened;
    return now->st_size != opened->st_size || !same_time(now->st_mtim, opened->st_mtim) ||
           (!file->summed && now->st_nlink == opened->st_nlink && !same_time(now->st_ctim, opened->st_ctim));
}

shard_status shard_file_check_unchanged(const shard_file *file)
{
    struct stat there;
    if (stat(file->path, &there) != 0)
        return fail("read", file->path);
    if (there.st_dev != file->opened.st_dev || there.st_ino != file->opened.st_ino || was_written(file, &there))
        return shard_error(SHARD_ERROR_IO, "cannot read %s: it was replaced while it was read; load it again", file->path);
    return SHARD_OK;
}

shard_status shard_file_check_unwritten(const shard_file *file)
{
    struct stat now;
    if (fstat(file->descriptor, &now) != 0)
        return fail("read", file->path);
    if (was_written(file, &now))
        return shard_error(SHARD_ERROR_IO, "cannot read %s: it was written to while it was read; load it again", file->path);
    return SHARD_OK;
}

/* Shows other processes of this host that the file is in use. On a network's file system a lock could prevent writes (SMB) or
 * need a descriptor that reads (NFS). */
static void lock(int descriptor, int operation)
{
    int result;
    if (!shard_file_is_local(descriptor))
        return;
    do
        result = shard_file_calls_used->flock(descriptor, operation);
    while (result != 0 && errno == EINTR);
}

/* Whether it is still the file at path. If not, errno is ENOENT, or says why that cannot be known. */
static bool is_at(const char *path, int descriptor)
{
    struct stat there, here;
    if (stat(path, &there) != 0 || fstat(descriptor, &here) != 0)
        return false;
    errno = ENOENT;
    return there.st_dev == here.st_dev && there.st_ino == here.st_ino;
}

void shard_file_leave_direct(shard_file *file)
{
    if (file->direct >= 0)
        shard_file_calls_used->close(file->direct);
    file->direct = -1;
}

shard_status shard_file_create(shard_file *file, const char *path, mode_t mode, const char *folder, bool *again)
{
    *again = false;
    if (folder)
        SHARD_TRY(shard_file_make_directory(folder));
    int descriptor = open_with(path, O_WRONLY | O_CREAT | O_EXCL, mode);
    if (descriptor < 0) {
        int error = errno;
        *again = error == EEXIST || (error == ENOENT && folder && access(folder, F_OK) != 0);
        errno = error;
        return *again ? SHARD_OK : fail("create", path);
    }
    lock(descriptor, LOCK_SH);
    *again = !is_at(path, descriptor);
    if (*again) {
        shard_status status = errno == ENOENT ? SHARD_OK : fail("create", path);
        shard_file_calls_used->close(descriptor);
        return status;
    }
    use(file, path, descriptor, open_again(path, O_WRONLY | O_DIRECT));
    return SHARD_OK;
}

shard_status shard_file_join(shard_file *file, const char *path)
{
    int descriptor = open_again(path, O_WRONLY);
    if (descriptor < 0)
        return shard_error(SHARD_ERROR_IO, "cannot open %s, which the first rank has made: %s%s", path, strerror(errno),
                           errno == ENOENT ? "; ranks on several hosts need a file system that they share" : "");
    lock(descriptor, LOCK_SH | LOCK_NB);
    use(file, path, descriptor, open_again(path, O_WRONLY | O_DIRECT));
    return SHARD_OK;
}

int shard_file_keep_lock(const shard_file *file)
{
    return fcntl(file->descriptor, F_DUPFD_CLOEXEC, 0);
}

void shard_file_unlock(int lock)
{
    if (lock >= 0)
        close(lock);
}

shard_status shard_file_allocate(shard_file *file, int64_t bytes)
{
    int result, tries = 0;
    do
        result = shard_file_calls_used->fallocate(file->descriptor, 0, 0, bytes);
    while (result != 0 && errno == EINTR && ++tries < RESERVE_MOST);
    if (result != 0 && (errno == EINTR || errno == EOPNOTSUPP || errno == ENOSYS))
        do
            result = shard_file_calls_used->ftruncate(file->descriptor, bytes);
        while (result != 0 && errno == EINTR);
    return result == 0 ? SHARD_OK : fail("write", file->path);
}

/* A transfer in either direction; the memory of a write is only read. */
typedef enum direction { READ, WRITE } direction;

static ssize_t call_once(direction way, int descriptor, char *data, int64_t bytes, int64_t offset)
{
    return way == READ ? shard_file_calls_used->pread(descriptor, data, (size_t)bytes, offset)
                       : shard_file_calls_used->pwrite(descriptor, data, (size_t)bytes, offset);
}

static shard_status move_cached(shard_file *file, direction way, char *data, int64_t bytes, int64_t offset, uint64_t *crc)
{
    for (int64_t at = 0; at < bytes;) {
        int64_t chunk = shard_min(bytes - at, crc ? SUMMED_CHUNK : CHUNK);
        ssize_t done = call_once(way, file->descriptor, data + at, chunk, offset + at);
        if (done == 0 && way == READ)
            return shard_error(SHARD_ERROR_IO, "cannot read %s: it became shorter meanwhile", file->path);
        if (done == 0)
            errno = EIO;
        if (done == 0 || (done < 0 && errno != EINTR))
            return fail(way == READ ? "read" : "write", file->path);
        if (done > 0 && crc)
            *crc = shard_crc64(*crc, data + at, done);
        at += done > 0 ? done : 0;
    }
    return SHARD_OK;
}

/* Transfers one aligned block directly. The rest after a short count goes through the page cache, and so does
 * everything later if direct transfers turn out not to work. */
static shard_status move_direct(shard_file *file, direction way, char *data, int64_t bytes, int64_t offset)
{
    ssize_t done = call_once(way, file->direct, data, bytes, offset);
    if (done < 0 && (errno == EINVAL || errno == EOPNOTSUPP)) {
        shard_file_leave_direct(file);
    } else if (done < 0 && errno != EINTR) {
        return fail(way == READ ? "read" : "write", file->path);
    }
    done = done < 0 ? 0 : done;
    return move_cached(file, way, data + done, bytes - done, offset + done, NULL);
}

/* The units that lie wholly in a range, as [head, end) of its bytes; none if the range is small or there are no
 * direct transfers. */
static void find_units(const shard_file *file, int64_t bytes, int64_t offset, int64_t *head, int64_t *end)
{
    int64_t before = (file->unit - offset % file->unit) % file->unit;
    *head = *end = 0;
    if (file->direct < 0 || bytes < DIRECT_LEAST || bytes - before < file->unit)
        return;
    *head = before;
    *end = before + (bytes - before) / file->unit * file->unit;
}

static bool is_aligned(const char *data)
{
    return (uintptr_t)data % MEMORY_UNIT == 0;
}

/* Aligned memory of BOUNCE bytes; NULL with the error set. */
static char *bounce_memory(shard_file *file)
{
    if (!file->bounce)
        file->bounce = shard_device_allocate(shard_cpu(), SHARD_MEMORY_WORKSPACE, BOUNCE + MEMORY_UNIT);
    if (!file->bounce)
        return NULL;
    return (char *)file->bounce + (MEMORY_UNIT - (uintptr_t)file->bounce % MEMORY_UNIT) % MEMORY_UNIT;
}

shard_status shard_file_read(shard_file *file, void *data, int64_t bytes, int64_t offset, uint64_t *crc)
{
    return move_cached(file, READ, data, bytes, offset, crc);
}

shard_status shard_file_read_alone(shard_file *file, void *data, int64_t bytes, int64_t offset, uint64_t *crc)
{
    char *to = data;
    int64_t head, end;
    find_units(file, bytes, offset, &head, &end);
    if (head == end || !is_aligned(to + head))
        return move_cached(file, READ, to, bytes, offset, crc);
    SHARD_TRY(move_cached(file, READ, to, head, offset, crc));
    int64_t at = head;
    shard_status status = SHARD_OK;
    shard_summing before = {0}; /* the chunk before; the last one has no read during its sum */
    while (at < end && file->direct >= 0 && status == SHARD_OK) {
        int64_t bytes_now = shard_min(end - at, CHUNK);
        status = move_direct(file, READ, to + at, bytes_now, offset + at);
        if (crc)
            shard_summing_finish(&before, crc);
        if (crc && at + bytes_now < end)
            shard_summing_start(&before, to + at, bytes_now);
        else if (crc)
            *crc = shard_crc64(*crc, to + at, bytes_now);
        at += bytes_now;
    }
    if (crc)
        shard_summing_finish(&before, crc);
    SHARD_TRY(status);
    return move_cached(file, READ, to + at, bytes - at, offset + at, crc);
}

shard_status shard_file_write(shard_file *file, const void *data, int64_t bytes, int64_t offset, uint64_t *crc)
{
    char *from = (char *)(uintptr_t)data;
    int64_t head, end;
    find_units(file, bytes, offset, &head, &end);
    bool aligned = is_aligned(from + head);
    char *bounce = head == end || aligned ? NULL : bounce_memory(file);
    if (head < end && !aligned && !bounce)
        return shard_last_status();
    SHARD_TRY(move_cached(file, WRITE, from, head, offset, crc));
    int64_t most = aligned ? CHUNK : BOUNCE, at = head;
    while (at < end && file->direct >= 0) {
        int64_t bytes_now = end - at < most ? end - at : most;
        shard_summing now = {0};
        if (!aligned)
            memcpy(bounce, from + at, (size_t)bytes_now);
        if (crc)
            shard_summing_start(&now, aligned ? from + at : bounce, bytes_now);
        shard_status status = move_direct(file, WRITE, aligned ? from + at : bounce, bytes_now, offset + at);
        if (crc)
            shard_summing_finish(&now, crc);
        SHARD_TRY(status);
        at += bytes_now;
    }
    return move_cached(file, WRITE, from + at, bytes - at, offset + at, crc);
}

/* Not repeated after a failure: the written data may be lost, and a second sync would not report it. */
static int sync_descriptor(int descriptor)
{
    int result;
    do
        result = shard_file_calls_used->fsync(descriptor);
    while (result != 0 && errno == EINTR);
    return result;
}

shard_status shard_file_sync(shard_file *file)
{
    return sync_descriptor(file->descriptor) == 0 ? SHARD_OK : fail("sync", file->path);
}

shard_status shard_file_close(shard_file *file)
{
    if (!file->path)
        return SHARD_OK;
    const char *path = file->path;
    file->path = NULL;
    shard_device_release(shard_cpu(), SHARD_MEMORY_WORKSPACE, file->bounce, BOUNCE + MEMORY_UNIT);
    shard_file_leave_direct(file);
    /* The descriptor is closed even if the call was interrupted. */
    if (shard_file_calls_used->close(file->descriptor) != 0 && errno != EINTR)
        return fail("close", path);
    return SHARD_OK;
}

static char *directory_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (!slash)
        return shard_strdup(".");
    return slash == path ? shard_strdup("/") : shard_format("%.*s", (int)(slash - path), path);
}

/* Reads the link at path, whose directory is given. 0: it is not a link, or nothing is there; -1 with errno set,
 * EACCES if the link must not be followed. */
static ssize_t read_link(const char *directory, const char *path, char *text, size_t bytes)
{
    struct stat folder, link;
    int there = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
    const char *slash = strrchr(path, '/');
    int file = there < 0 ? -1 : openat(there, slash ? slash + 1 : path, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    ssize_t length = 0;
    if (file >= 0 && fstat(there, &folder) == 0 && fstat(file, &link) == 0 && S_ISLNK(link.st_mode)) {
        bool shared = (folder.st_mode & S_ISVTX) && (folder.st_mode & S_IWOTH);
        bool trusted = !shared || link.st_uid == geteuid() || link.st_uid == folder.st_uid;
        length = trusted ? readlinkat(file, "", text, bytes) : (errno = EACCES, -1);
    }
    int error = errno;
    if (file >= 0)
        close(file);
    if (there >= 0)
        close(there);
    errno = error;
    return length;
}

char *shard_file_follow(const char *path)
{
    char *target = shard_strdup(path), link[PATH_MAX];
    for (int links = 0; target; links++) {
        char *directory = directory_of(target);
        ssize_t length = directory ? read_link(directory, target, link, sizeof link - 1) : 0;
        if (directory && length == 0) {
            free(directory);
            return target;
        }
        char *next = NULL;
        if (length < 0 && errno == EACCES) {
            shard_error(SHARD_ERROR_IO,
                        "cannot write %s: %s is a link that another user has made in a directory that all may write to", path,
                        target);
        } else if (length < 0 || links == LINKS_MOST) {
            errno = length < 0 ? errno : ELOOP;
            fail("write", path);
        } else if (directory) {
            link[length] = '\0';
            next = link[0] == '/' ? shard_strdup(link) : shard_format("%s/%s", directory, link);
        }
        free(directory);
        free(target);
        target = next;
    }
    return NULL;
}

shard_status shard_file_check_target(const char *path, mode_t *mode)
{
    struct stat status;
    if (stat(path, &status) != 0)
        return SHARD_OK;
    if (!S_ISREG(status.st_mode))
        return shard_error(SHARD_ERROR_IO, "cannot write %s: it is there already and is not a regular file", path);
    *mode = status.st_mode & 0777;
    return SHARD_OK;
}

void shard_file_set_mode(shard_file *file, mode_t mode)
{
    shard_file_calls_used->fchmod(file->descriptor, mode);
}

/* If not, errno says why. */
static bool is_directory(const char *path)
{
    struct stat status;
    if (stat(path, &status) != 0)
        return false;
    errno = ENOTDIR;
    return S_ISDIR(status.st_mode);
}

/* Changes a name in the path's directory, and syncs the directory, which is opened first: else nothing is changed. *changed: it
 * was, also if the sync has failed. */
static shard_status change_directory(const char *path, shard_status (*change)(const char *path, const char *from),
                                     const char *from, bool *changed)
{
    char *directory = directory_of(path);
    if (!directory)
        return shard_last_status();
    int descriptor = open_again(directory, O_RDONLY | O_DIRECTORY), error = errno;
    /* A directory that is there is used as it is, also in one that its user may not list, as /home on many hosts. */
    bool there = descriptor < 0 && error == EACCES && !from && is_directory(path);
    errno = error;
    shard_status status = there ? SHARD_OK : descriptor < 0 ? fail("open directory", directory) : change(path, from);
    *changed = status == SHARD_OK;
    if (status == SHARD_OK && !there && sync_descriptor(descriptor) != 0 && errno != EINVAL) /* EINVAL: no need to sync */
        status =
            from ? shard_error(SHARD_ERROR_IO,
                               "%s is the new file, but after a power failure perhaps the old one: cannot sync directory %s: %s",
                               path, directory, strerror(errno))
                 : fail("sync directory", directory);
    if (descriptor >= 0)
        shard_file_calls_used->close(descriptor);
    free(directory);
    return status;
}

static shard_status rename_to(const char *path, const char *temporary)
{
    return shard_file_calls_used->rename(temporary, path) == 0 ? SHARD_OK : fail("rename a temporary file to", path);
}

shard_status shard_file_replace(const char *temporary, const char *path, bool *replaced)
{
    return change_directory(path, rename_to, temporary, replaced);
}

static shard_status make_directory(const char *path, const char *unused)
{
    (void)unused;
    if (shard_file_calls_used->mkdir(path, 0777) == 0)
        return SHARD_OK;
    return errno == EEXIST && is_directory(path) ? SHARD_OK : fail("make directory", path);
}

shard_status shard_file_make_directory(const char *path)
{
    size_t bytes = strlen(path);
    while (bytes > 1 && path[bytes - 1] == '/')
        bytes--;
    char *name = shard_format("%.*s", (int)bytes, path); /* "run/" lies in the directory of "run" */
    bool made;
    shard_status status = name ? change_directory(name, make_directory, NULL, &made) : shard_last_status();
    free(name);
    return status;
}

bool shard_file_remove_directory(const char *path)
{
    return shard_file_calls_used->rmdir(path) == 0;
}

void shard_file_remove(const char *path)
{
    shard_file_calls_used->unlink(path);
}
