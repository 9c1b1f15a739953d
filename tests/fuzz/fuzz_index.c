/* Any bytes as the index of a checkpoint in several files: refused with an error of one line, or its files are those of its
 * folder, each once, in the order of their names. */
#include "../../tools/checkpoint/index.h"
#include "base/error.h"
#include "checkpoint/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds)
{
    if (!holds)
        abort();
}

static char folder[64] = "/dev/shm/shard-fuzz-XXXXXX", path[96];

static void write_at(const char *name, const void *content, size_t size)
{
    char to[128];
    snprintf(to, sizeof to, "%s/%s", folder, name);
    FILE *file = fopen(to, "wb");
    must(file && fwrite(content, 1, size, file) == size && fclose(file) == 0);
}

static void remove_folder(void)
{
    static const char *const names[] = {"m1", "m2", "index"};
    for (int i = 0; i < 3; i++) {
        char of[128];
        snprintf(of, sizeof of, "%s/%s", folder, names[i]);
        unlink(of);
    }
    rmdir(folder);
}

static void start(void)
{
    static const char header[] = "{\"%c\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}";
    if (path[0])
        return;
    must(mkdtemp(folder) != NULL && atexit(remove_folder) == 0);
    for (int i = 0; i < 2; i++) {
        char file[128] = {0};
        int length = sprintf(file + 8, header, 'a' + i);
        file[0] = (char)length;
        write_at(i ? "m2" : "m1", file, (size_t)length + 9);
    }
    snprintf(path, sizeof path, "%s/index", folder);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    source_list list = {0};
    start();
    write_at("index", data, size);
    shard_status status = index_add_sources(&list, path, false);
    must(status == shard_last_status() && !strchr(shard_last_error(), '\n'));
    for (int64_t i = 0; i < list.count && status == SHARD_OK; i++) {
        must(strncmp(list.at[i].path, folder, strlen(folder)) == 0 && list.at[i].path[strlen(folder)] == '/');
        must(!strchr(list.at[i].path + strlen(folder) + 1, '/'));
        must(i == 0 || strcmp(list.at[i - 1].path, list.at[i].path) < 0);
    }
    shard_clear_error();
    sources_free(&list);
    return 0;
}
