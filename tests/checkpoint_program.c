/* Saves tensors that check_safetensors.py knows, as one of the ranks that it starts:
 * element i of each is i / 2, or i for integers. */
#include <shard/shard.h>

#include <stdio.h>

static void add(shard_tensors *list, const char *name, shard_dtype dtype, shard_shape shape, int dim)
{
    int rank = shard_group_rank(shard_world()), size = shard_group_size(shard_world());
    int64_t columns = shape.ndim ? shape.dim[shape.ndim - 1] : 1;
    shard_shape own = shape;
    shard_range range = {0, 0};
    if (dim >= 0) {
        range = shard_split_range(shape.dim[dim], size, rank);
        own.dim[dim] = range.size;
    }
    SHARD_SCOPE
    {
        shard_tensor *x = shard_empty(own, .dtype = SHARD_FLOAT64);
        double *data = shard_data(x);
        for (int64_t i = 0; i < shard_numel(x); i++) {
            int64_t own_columns = own.ndim ? own.dim[own.ndim - 1] : 1, row = i / own_columns, column = i % own_columns;
            row += dim == 0 && shape.ndim > 1 ? range.start : 0;
            column += dim == shape.ndim - 1 ? range.start : 0;
            data[i] = (double)(row * columns + column) * (shard_dtype_is_float(dtype) ? 0.5 : 1);
        }
        x = shard_cast(x, dtype);
        shard_tensors_add(list, name, dim >= 0 ? shard_as_split(x, dim, shard_world(), range.start, shape.dim[dim]) : x);
    }
}

int main(int argc, char **argv)
{
    shard_init(&argc, &argv);
    shard_tensors *list = shard_tensors_create();
    shard_metadata *metadata = shard_metadata_create();
    shard_metadata_set_integer(metadata, "epoch", 3);
    shard_metadata_set(metadata, "größe", "\"名前\"\n");
    add(list, "fc.weight", SHARD_FLOAT32, SHARD_SHAPE(13, 7), 0);
    add(list, "fc.columns", SHARD_FLOAT32, SHARD_SHAPE(13, 7), 1);
    add(list, "fc.bias", SHARD_FLOAT64, SHARD_SHAPE(13), 0);
    add(list, "größe/名前", SHARD_FLOAT16, SHARD_SHAPE(2, 2), -1);
    add(list, "brain", SHARD_BFLOAT16, SHARD_SHAPE(4), -1);
    add(list, "bn.num_batches_tracked", SHARD_INT64, SHARD_SCALAR, -1);
    add(list, "ints", SHARD_INT32, SHARD_SHAPE(3, 1, 2), -1);
    add(list, "bytes", SHARD_UINT8, SHARD_SHAPE(5), -1);
    add(list, "nothing", SHARD_FLOAT32, SHARD_SHAPE(0, 4), -1);
    if (argc == 2)
        shard_save(list, argv[1], metadata);
    else
        fprintf(stderr, "usage: checkpoint_program PATH\n");
    shard_metadata_destroy(metadata);
    shard_tensors_destroy(list);
    return shard_finalize() || argc != 2;
}
