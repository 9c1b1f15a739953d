#include "support/golden.h"

#include "support/gradcheck.h"

#include <shard/op.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void read_tensor(FILE *file, golden *tensor)
{
    int64_t count = 1;
    ck_assert_int_eq(fscanf(file, "%d", &tensor->shape.ndim), 1);
    ck_assert(tensor->shape.ndim >= 0 && tensor->shape.ndim <= SHARD_MAX_DIMS);
    for (int i = 0; i < tensor->shape.ndim; i++) {
        ck_assert_int_eq(fscanf(file, "%" SCNd64, &tensor->shape.dim[i]), 1);
        count *= tensor->shape.dim[i];
    }
    ck_assert(count > 0 && count < 100000);
    tensor->values = calloc((size_t)count, sizeof *tensor->values);
    ck_assert_ptr_nonnull(tensor->values);
    for (int64_t i = 0; i < count; i++)
        ck_assert_int_eq(fscanf(file, "%lf", &tensor->values[i]), 1);
}

golden_case golden_read(const char *path, const char *name)
{
    char word[64], found[64] = "";
    golden_case c = {0};
    FILE *file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    char *line = NULL;
    size_t capacity = 0;
    while (strcmp(found, name) != 0 && getline(&line, &capacity, file) > 0)
        if (sscanf(line, "case %63s", found) != 1)
            found[0] = '\0';
    free(line);
    ck_assert_msg(strcmp(found, name) == 0, "there is no case %s", name);
    while (fscanf(file, "%63s", word) == 1 && strcmp(word, "case") != 0 && strcmp(word, "end") != 0) {
        ck_assert_int_lt(c.count, GOLDEN_TENSORS);
        golden *tensor = &c.tensors[c.count++];
        snprintf(tensor->name, sizeof tensor->name, "%.19s", word);
        read_tensor(file, tensor);
    }
    fclose(file);
    return c;
}

void golden_free(golden_case *c)
{
    for (int i = 0; i < c->count; i++)
        free(c->tensors[i].values);
}

const golden *golden_find(const golden_case *c, const char *name)
{
    for (int i = 0; i < c->count; i++)
        if (strcmp(c->tensors[i].name, name) == 0)
            return &c->tensors[i];
    return NULL;
}

shard_tensor *golden_tensor(const golden *tensor, shard_dtype dtype)
{
    shard_tensor *doubles = shard_from_host(tensor->values, tensor->shape, .dtype = SHARD_FLOAT64);
    return shard_detach(shard_cast(doubles, dtype));
}

void check_golden(const golden_case *c, const char *name, shard_tensor *tensor, double tolerance)
{
    const golden *expected = golden_find(c, name);
    ck_assert_msg(tensor != NULL, "%s: %s", name, shard_last_error());
    shard_shape shape = shard_tensor_shape(tensor);
    ck_assert_int_eq(shape.ndim, expected->shape.ndim);
    for (int i = 0; i < shape.ndim; i++)
        ck_assert_int_eq(shape.dim[i], expected->shape.dim[i]);
    check_tensor(name, tensor, expected->values, tolerance);
}
