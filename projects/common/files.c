#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool sync_descriptor(int descriptor)
{
    int result;
    do
        result = fsync(descriptor);
    while (result != 0 && errno == EINTR);
    return result == 0;
}

/* Syncs the folder in which path lies: else a power failure may take its name away. False with errno set. */
static bool sync_parent(const char *path)
{
    char parent[PATH_MAX];
    size_t bytes = strlen(path);
    while (bytes > 1 && path[bytes - 1] == '/')
        bytes--;
    while (bytes > 0 && path[bytes - 1] != '/')
        bytes--;
    snprintf(parent, sizeof parent, "%.*s", bytes > 0 ? (int)bytes : 1, bytes > 0 ? path : ".");
    int descriptor = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0)
        return false;
    bool synced = sync_descriptor(descriptor) || errno == EINVAL; /* EINVAL: a file system without it */
    int error = errno;
    close(descriptor);
    errno = error;
    return synced;
}

static bool make_one(const char *path)
{
    bool made = mkdir(path, 0777) == 0;
    if (!made && errno != EEXIST)
        return false;
    return sync_parent(path) || (!made && errno == EACCES); /* it is there, in a folder that this user may not list */
}

bool files_make_folder(const char *path)
{
    char parent[PATH_MAX];
    size_t bytes = strlen(path);
    if (bytes >= sizeof parent) {
        errno = ENAMETOOLONG;
        return false;
    }
    memcpy(parent, path, bytes + 1);
    for (size_t at = 1; at < bytes; at++) {
        if (parent[at] != '/' || parent[at - 1] == '/')
            continue;
        parent[at] = '\0';
        if (access(parent, F_OK) != 0 && !make_one(parent))
            return false;
        parent[at] = '/';
    }
    return make_one(path);
}

shard_status files_join(char *path, const char *what, const char *folder, const char *name)
{
    if (snprintf(path, PATH_MAX, "%s/%s", folder, name) < PATH_MAX)
        return SHARD_OK;
    return shard_error(SHARD_ERROR_IO, "%s: a path of more than %d bytes", what, PATH_MAX - 1);
}

FILE *files_open(const char *path)
{
    struct stat found;
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    bool opened = descriptor >= 0 && fstat(descriptor, &found) == 0;
    FILE *file = opened && S_ISREG(found.st_mode) ? fdopen(descriptor, "rb") : NULL;
    if (file)
        return file;
    shard_error(SHARD_ERROR_IO, "%s: %s", path, opened && !S_ISREG(found.st_mode) ? "not a regular file" : strerror(errno));
    if (descriptor >= 0)
        close(descriptor);
    return NULL;
}

int64_t files_read_line(FILE *file, char *line, int64_t room)
{
    int64_t length = 0;
    int c;
    while ((c = getc_unlocked(file)) != EOF && c != '\n' && length < room - 1)
        line[length++] = (char)c;
    line[length] = '\0';
    if (c == EOF && (length == 0 || ferror(file)))
        return -1;
    return c == EOF || c == '\n' ? length : room;
}

/* Closes the file. */
static bool write_and_sync(FILE *file, void (*write)(const void *of, FILE *to), const void *of)
{
    write(of, file);
    bool written = fflush(file) == 0 && !ferror(file) && sync_descriptor(fileno(file));
    int error = errno;
    if (fclose(file) != 0)
        return false;
    errno = error;
    return written;
}

shard_status files_save(const char *path, void (*write)(const void *of, FILE *to), const void *of)
{
    char made[PATH_MAX];
    if (snprintf(made, sizeof made, "%s.tmp", path) >= (int)sizeof made)
        return shard_error(SHARD_ERROR_IO, "%s: a path of more than %d bytes", path, PATH_MAX - 5);
    int descriptor = open(made, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
    FILE *file = descriptor < 0 ? NULL : fdopen(descriptor, "wb");
    if (file && write_and_sync(file, write, of) && rename(made, path) == 0 && sync_parent(path))
        return SHARD_OK;
    shard_error(SHARD_ERROR_IO, "%s: %s", path, strerror(errno));
    if (descriptor >= 0) {
        if (!file)
            close(descriptor);
        unlink(made);
    }
    return shard_last_status();
}
