/*
 * The cross-entropy and top-5 accuracy of logits that are split by classes. No rank has all logits of a row.
 *
 *     shardrun -n 2 build/release/examples/example_split_loss
 * Prints:
 *     loss 6.9078, 0 of 3 in the top 5
 *     loss 0.0000, 3 of 3 in the top 5
 */
#include <shard/shard.h>
#include <stdio.h>

enum { ROWS = 3, CLASSES = 1000 };

int main(int argc, char **argv)
{
    shard_init(&argc, &argv);
    shard_group *group = shard_world();
    shard_range range = shard_split_range(CLASSES, shard_group_size(group), shard_group_rank(group));
    SHARD_SCOPE
    {
        shard_tensor *labels = shard_from_host((int64_t[]){7, 512, 999}, SHARD_SHAPE(ROWS), .dtype = SHARD_INT64);
        /* [3, 1000], of which each rank has [3, range.size] */
        shard_tensor *zeros = shard_zeros(SHARD_SHAPE(ROWS, range.size));
        shard_tensor *flat = shard_as_split(zeros, 1, group, range.start, CLASSES);
        shard_tensor *sure = shard_add_at_labels(flat, labels, NULL, 100.0, -100); /* +100 at each row's label */
        for (int i = 0; i < 2; i++) {
            shard_tensor *rank_of_label; /* how many logits come before the label's */
            shard_tensor *loss = shard_cross_entropy_with_rank(i == 0 ? flat : sure, labels, &rank_of_label);
            int64_t correct = shard_count_top_k(rank_of_label, 5);
            if (shard_group_rank(group) == 0)
                printf("loss %.4f, %d of %d in the top 5\n", shard_item(loss), (int)correct, ROWS);
        }
    }
    return shard_finalize();
}
