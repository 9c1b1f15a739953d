/*
 * Memory of other owners, without a copy: a parameter on an array of the program's, which a step writes to; the same memory for
 * another library, and a tensor on memory of that library, both by DLPack.
 *
 *     shardrun -n 2 build/release/examples/example_foreign_memory
 * Prints:
 *     the array after a step: 0.5 1.5 2.5
 *     out by DLPack: sum 4.5, in by DLPack: sum 60
 *     owners that have their memory again: 2
 */
#include <shard/dlpack.h>
#include <shard/shard.h>
#include <stdio.h>
#include <stdlib.h>

static int returned;

/* Called when the last tensor on the array is released. */
static void free_array(void *array)
{
    free(array);
    returned++;
}

/* ---- these stand for another library, which lends and reads float32 [3] ---- */

static void take_back(DLManagedTensorVersioned *managed)
{
    (void)managed; /* usually frees the struct and the memory */
    returned++;
}

static float numbers[3] = {10, 20, 30};
static int64_t size = 3;
static DLManagedTensorVersioned lent = {.version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION},
                                        .deleter = take_back,
                                        .dl_tensor = {numbers, {kDLCPU, 0}, 1, {kDLFloat, 32, 1}, &size, NULL, 0}};

static double sum_of(DLManagedTensorVersioned *managed) /* a vector without strides, as the library makes it */
{
    double sum = 0;
    for (int64_t i = 0; managed && i < managed->dl_tensor.shape[0]; i++)
        sum += (double)((float *)((char *)managed->dl_tensor.data + managed->dl_tensor.byte_offset))[i];
    if (managed) /* NULL: the export has failed */
        managed->deleter(managed);
    return sum;
}

int main(int argc, char **argv)
{
    shard_init(&argc, &argv);
    float *array = malloc(3 * sizeof *array), values[3] = {0};
    for (int i = 0; array && i < 3; i++)
        array[i] = (float)(i + 1);
    shard_tensor *x = shard_from_memory(array, SHARD_SHAPE(3), SHARD_FLOAT32, shard_device_open("cpu"), free_array, array);
    if (!x)
        free(array); /* after an error the array is still the caller's */
    shard_set_requires_grad(x, true);
    shard_tensors *parameters = shard_tensors_create();
    shard_tensors_add(parameters, "x", x);
    shard_optimizer *sgd = shard_sgd(parameters, .lr = 0.5);
    SHARD_SCOPE
    {
        shard_backward(shard_sum(x)); /* a gradient of ones */
        shard_step(sgd);
        for (int i = 0; x && i < 3; i++)
            values[i] = array[i];
        double out = sum_of(shard_to_dlpack(x));
        double in = shard_item(shard_sum(shard_from_dlpack(&lent)));
        if (shard_group_rank(shard_world()) == 0)
            printf("the array after a step: %g %g %g\nout by DLPack: sum %g, in by DLPack: sum %g\n", values[0], values[1],
                   values[2], out, in);
    }
    shard_optimizer_destroy(sgd);
    shard_tensors_destroy(parameters);
    shard_release(x); /* the last of three references */
    if (shard_group_rank(shard_world()) == 0)
        printf("owners that have their memory again: %d\n", returned);
    return shard_finalize();
}
