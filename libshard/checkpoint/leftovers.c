/* Temporary files of killed jobs. */
#include "checkpoint/file.h"

#include "base/memory.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

/* Not in every linux/magic.h. */
#define ZFS_MAGIC 0x2fc12fc1
#define XFS_MAGIC 0x58465342

enum { DIGITS = 16, DAY = 24 * 60 * 60 };

bool shard_file_is_local(int descriptor)
{
    static const unsigned long known[] = {EXT4_SUPER_MAGIC, XFS_MAGIC, BTRFS_SUPER_MAGIC,    TMPFS_MAGIC,
                                          F2FS_SUPER_MAGIC, ZFS_MAGIC, OVERLAYFS_SUPER_MAGIC};
    struct statfs system;
    if (fstatfs(descriptor, &system) != 0)
        return false;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if ((unsigned long)system.f_type == known[i])
            return true;
    return false;
}

static bool is_left(int descriptor)
{
    struct stat status;
    if (fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode) || status.st_uid != geteuid())
        return false;
    if (!shard_file_is_local(descriptor))
        return time(NULL) - status.st_mtim.tv_sec > DAY;
    return shard_file_calls_used->flock(descriptor, LOCK_EX | LOCK_NB) == 0;
}

/* The lock is released by the close, after the removal: a job that has made a file of this name meanwhile finds it gone. A file
 * that replaces a read-only one may be read-only, too. */
static void remove_if_left(const char *path)
{
    int descriptor = shard_file_calls_used->open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0);
    if (descriptor < 0)
        return;
    if (is_left(descriptor))
        shard_file_remove(path);
    shard_file_calls_used->close(descriptor);
}

bool shard_file_is_temporary(const char *name, const char *base)
{
    size_t length = strlen(base);
    if (strncmp(name, base, length) != 0 || strncmp(name + length, ".tmp.", 5) != 0)
        return false;
    const char *digits = name + length + 5;
    return strlen(digits) == DIGITS && strspn(digits, "0123456789abcdef") == DIGITS;
}

void shard_file_remove_leftovers(const char *path)
{
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    char *folder = slash ? shard_format("%.*s/", (int)(slash - path), path) : shard_strdup("./");
    DIR *entries = folder ? opendir(folder) : NULL;
    for (struct dirent *entry = entries ? readdir(entries) : NULL; entry; entry = readdir(entries)) {
        if (!shard_file_is_temporary(entry->d_name, base))
            continue;
        char *found = shard_format("%s%s", folder, entry->d_name);
        if (found)
            remove_if_left(found);
        free(found);
    }
    if (entries)
        closedir(entries);
    free(folder);
}
