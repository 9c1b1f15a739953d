/* Any bytes as pairs for verification: refused with an error of one line, or a set whose images lie in the bytes. */
#include "pairs.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds)
{
    if (!holds)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static image_file file;
    uint8_t *copy = malloc(size + 1);
    must(copy != NULL);
    memcpy(copy, data, size);
    pair_set *set = pair_set_read("fuzz", copy, size);
    must((set != NULL) == (shard_last_status() == SHARD_OK) && !strchr(shard_last_error(), '\n'));
    image_source images = set ? pair_set_source(set) : (image_source){0};
    must(!set || images.images == 2 * pair_set_count(set));
    for (int64_t i = 0; i < images.images; i++) {
        must(images.read(images.of, i, &file) == SHARD_OK && file.size <= size);
        pair_set_same(set, images.label(images.of, i));
    }
    pair_set_close(set);
    shard_clear_error();
    return 0;
}
