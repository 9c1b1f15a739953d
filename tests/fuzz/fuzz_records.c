/* Bytes up to the first 0 as train.idx, those behind it as train.rec: refused with an error of one line, or a set whose labels
 * are in range and whose images are read or refused. */
#include "records.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char folder[64] = "/dev/shm/shard-fuzz-XXXXXX";

static void must(bool holds)
{
    if (!holds)
        abort();
}

static void write_at(const char *name, const void *content, size_t size)
{
    char to[128];
    snprintf(to, sizeof to, "%s/%s", folder, name);
    FILE *file = fopen(to, "wb");
    must(file && fwrite(content, 1, size, file) == size && fclose(file) == 0);
}

static void remove_folder(void)
{
    static const char *const names[] = {"train.idx", "train.rec"};
    for (int i = 0; i < 2; i++) {
        char of[128];
        snprintf(of, sizeof of, "%s/%s", folder, names[i]);
        unlink(of);
    }
    rmdir(folder);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static image_file file;
    static bool started;
    if (!started)
        must(mkdtemp(folder) != NULL && atexit(remove_folder) == 0);
    started = true;
    const uint8_t *end = memchr(data, 0, size);
    size_t index = end ? (size_t)(end - data) : size;
    write_at("train.idx", data, index);
    write_at("train.rec", data + index + (end != NULL), size - index - (end != NULL));
    record_set *set = record_set_open(folder);
    must((set != NULL) == (shard_last_status() == SHARD_OK) && !strchr(shard_last_error(), '\n'));
    for (int64_t i = 0; set && i < record_set_images(set); i++) {
        must(record_set_label(set, i) >= 0 && record_set_label(set, i) < record_set_identities(set));
        shard_status status = record_set_read(set, i, &file);
        must(status == shard_last_status() && (status != SHARD_OK || file.size <= size));
        shard_clear_error();
    }
    record_set_close(set);
    shard_clear_error();
    return 0;
}
