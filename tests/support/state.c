#include "support/state.h"

#include "support/elements.h"
#include "support/scratch.h"

#include <stdlib.h>

static shard_tensors *make(shard_group *world, uint64_t seed, shard_shape shared, shard_shape rows)
{
    const struct {
        const char *name;
        shard_shape shape;
        int dim;
    } members[] = {{"small", {1, {5}}, -1}, {"shared", shared, -1}, {"rows", rows, 0}, {"columns", {2, {31, 11}}, 1}};
    shard_tensors *list = shard_tensors_create();
    for (int i = 0; i < 4; i++)
        SHARD_SCOPE
        {
            shard_tensor *x = make_part(members[i].shape, SHARD_FLOAT32, members[i].dim, world);
            set_elements(x, seed + (uint64_t)i);
            check_ok(shard_tensors_add(list, members[i].name, x));
        }
    return list;
}

shard_tensors *make_state(shard_group *world, uint64_t seed)
{
    return make(world, seed, SHARD_SHAPE(750, 701), SHARD_SHAPE(31, 11));
}

shard_tensors *make_small_state(shard_group *world, uint64_t seed)
{
    return make(world, seed, SHARD_SHAPE(90, 71), SHARD_SHAPE(31, 11));
}

shard_tensors *make_direct_state(shard_group *world, uint64_t seed)
{
    return make(world, seed, SHARD_SHAPE(90, 71), SHARD_SHAPE(1061, 257)); /* 272 KB of each of 4 ranks */
}

void check_state(const shard_tensors *list, uint64_t seed)
{
    for (int64_t i = 0; i < shard_tensors_count(list); i++)
        check_elements(shard_tensors_name(list, i), shard_tensors_at(list, i), seed + (uint64_t)i);
}

void check_content(shard_group *world, const char *path, uint64_t seed)
{
    shard_tensors *list = make_state(world, 1000);
    check_ok(shard_load(list, path));
    check_state(list, seed);
    shard_tensors_destroy(list);
}

void check_files_equal(const char *a, const char *b)
{
    size_t bytes[2];
    void *content[2] = {read_file(a, &bytes[0]), read_file(b, &bytes[1])};
    ck_assert_uint_eq(bytes[0], bytes[1]);
    for (size_t i = 0; i < bytes[0]; i++)
        ck_assert_msg(((char *)content[0])[i] == ((char *)content[1])[i], "%s and %s differ from byte %zu on; %.4000s", a, b, i,
                      (char *)content[0] + 8);
    check_ok(shard_verify(a));
    free(content[0]);
    free(content[1]);
}
