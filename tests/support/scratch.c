#include "support/scratch.h"

#include "support/check.h"

#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char directory[200];

void scratch_open(void)
{
    const char *parent = getenv("TMPDIR");
    snprintf(directory, sizeof directory, "%s/shard-scratch-XXXXXX", parent && *parent ? parent : "/tmp");
    if (!mkdtemp(directory)) {
        perror(directory);
        exit(1);
    }
}

static int remove_entry(const char *path, const struct stat *status, int kind, struct FTW *place)
{
    (void)status, (void)kind, (void)place;
    return remove(path);
}

void scratch_close(void)
{
    nftw(directory, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

const char *scratch_path(const char *name)
{
    static char paths[8][600];
    static unsigned turn;
    char *path = paths[turn++ % 8];
    if (!directory[0]) { /* no ck_assert: main calls this, too */
        fputs("scratch_path: scratch_open was not called\n", stderr);
        abort();
    }
    snprintf(path, sizeof paths[0], "%s/%s", directory, name);
    return path;
}

void write_file(const char *path, const void *data, size_t bytes)
{
    FILE *file = fopen(path, "wb");
    ck_assert_msg(file != NULL, "%s: %s", path, strerror(errno));
    ck_assert_uint_eq(fwrite(data, 1, bytes, file), bytes);
    ck_assert_int_eq(fclose(file), 0);
}

void *read_file(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    ck_assert_msg(file != NULL, "%s: %s", path, strerror(errno));
    ck_assert_int_eq(fseek(file, 0, SEEK_END), 0);
    *bytes = (size_t)ftell(file);
    rewind(file);
    char *data = malloc(*bytes + 1);
    ck_assert_ptr_nonnull(data);
    ck_assert_uint_eq(fread(data, 1, *bytes, file), *bytes);
    fclose(file);
    return data;
}

int scratch_count(const char *part)
{
    int count = 0;
    DIR *entries = opendir(directory);
    for (struct dirent *entry = entries ? readdir(entries) : NULL; entry; entry = readdir(entries))
        count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 && strstr(entry->d_name, part);
    if (entries)
        closedir(entries);
    return count;
}
