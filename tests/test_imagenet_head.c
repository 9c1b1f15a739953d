/* projects/imagenet with --head fused: the losses, accuracies and checkpoints of the plain head, on any number of ranks. */
#include "support/trainer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* In float64 rounding shows only what is computed otherwise. The last batch of an epoch has 10 images. */
#define EXACT                                                                                                                    \
    "-a resnet18 --stem small --width 8 --image-size 8 --synthetic 22 --num-classes 101 -b 12 --lr 0.002 -j 1 --seed 7 --dtype " \
    "float64 "                                                                                                                   \
    "--sync-bn "
#define COLUMN "--enable-model-parallel --model-parallel-dim column "

typedef struct setting {
    int ranks;
    const char *common, *split;
} setting;

/* The first ones are the test case "usual", the others "more". */
static const setting settings[] = {
    {1, "--clip-grad 0.5", ""},
    {2, "--accumulate 2 --label-smoothing 0.1", COLUMN},
    {3, "--optimizer adamw", COLUMN},
    {2, "", "--enable-zero-optim 3"},
    {4, "--nesterov", COLUMN "--model-parallel-size 2 --enable-zero-optim 2"},
    {1, "--optimizer lamb", ""},
    {2, "--optimizer lars --clip-grad 2", COLUMN "--same-batch-in-group"},
    {3, "--accumulate 2", "--enable-zero-optim 1"},
    {4, "--optimizer adam", COLUMN "--model-parallel-size 2"},
};
enum { FIRST = 3, SETTINGS = sizeof settings / sizeof *settings, STEPS_OF_RUN = 4 /* an epoch has 2 */ };

/* A fused run, and the same from a checkpoint of a plain one, are the plain run of one rank. */
START_TEST(test_as_plain)
{
    const setting *s = &settings[_i];
    check_runs("", EXACT "%s --head plain --steps %d --metrics plain.json", s->common, STEPS_OF_RUN);
    check_runs(shardrun(s->ranks), EXACT "%s %s --head fused --steps %d --metrics fused.json --output fused --overwrite",
               s->common, s->split, STEPS_OF_RUN);
    check_metrics_agree("fused.json", "plain.json", 1e-7);
    line lines[MOST_LINES];
    ck_assert_int_eq(read_metrics("plain.json", lines), STEPS_OF_RUN + 2); /* with two validations */
    ck_assert_msg(fabs(lines[0].loss - lines[STEPS_OF_RUN + 1].loss) > 1e-4, "nothing was learned: loss %f", lines[0].loss);
    ck_assert_ptr_nonnull(strstr(text_of("log"), ", fused head\n"));

    check_runs(shardrun(s->ranks), EXACT "%s %s --head plain --steps 2 --metrics fused.json --output fused --overwrite",
               s->common, s->split);
    check_runs("", EXACT "%s --head fused --steps %d --metrics fused.json --resume fused/checkpoint.safetensors", s->common,
               STEPS_OF_RUN);
    check_metrics_agree("fused.json", "plain.json", 1e-7);
    check_runs("", EXACT "-e --head fused --resume fused/best.safetensors --metrics evaluated.json");
    check_runs("", EXACT "-e --head plain --resume fused/best.safetensors --metrics evaluated-plain.json");
    check_metrics_agree("evaluated.json", "evaluated-plain.json", 1e-9);
}
END_TEST

/* In mixed precision the two round at other places, and matrix units of processors (AMX) differ: the losses part by a small part
 * of what the steps do. */
#define HALF                                                                                                                     \
    "-a resnet18 --stem small --width 8 --image-size 16 --synthetic 24 --num-classes 101 -b 12 --lr 0.01 -j 1 --seed 7 "         \
    "--sync-bn "

static const setting half[] = {{2, "--enable-amp-mode bf16", COLUMN}, {3, "--enable-amp-mode fp16", COLUMN}};

START_TEST(test_half)
{
    const setting *s = &half[_i];
    line fused[MOST_LINES], plain[MOST_LINES];
    check_runs(shardrun(s->ranks), HALF "%s %s --head plain --val-interval 0 --steps 8 --metrics plain.json", s->common,
               s->split);
    check_runs(shardrun(s->ranks), HALF "%s %s --head fused --val-interval 0 --steps 8 --metrics fused.json", s->common,
               s->split);
    ck_assert_int_eq(read_metrics("plain.json", plain), 8);
    ck_assert_int_eq(read_metrics("fused.json", fused), 8);
    double learned = plain[0].loss - plain[7].loss;
    ck_assert_msg(learned > 1, "8 steps take %f off the loss", learned);
    for (int i = 0; i < 8; i++)
        ck_assert_msg(fabs(fused[i].loss - plain[i].loss) < 0.05 * learned, "step %d: loss %f, %f with the plain head", i + 1,
                      fused[i].loss, plain[i].loss);
}
END_TEST

/* --head auto with a stash takes the classifier, on one rank too, or says that it cannot. */
START_TEST(test_stash_chooses)
{
    line automatic[MOST_LINES], fused[MOST_LINES];
    check_runs("", EXACT "--dtype float32 --head auto --head-stash 0.5 --val-interval 0 --steps 3 "
                         "--metrics auto.json");
    check_runs("", EXACT "--dtype float32 --head fused --head-stash 0.5 --val-interval 0 --steps 3 "
                         "--metrics fused.json");
    ck_assert_int_eq(read_metrics("auto.json", automatic), 3);
    ck_assert_int_eq(read_metrics("fused.json", fused), 3);
    for (int i = 0; i < 3; i++)
        ck_assert_double_eq(automatic[i].loss, fused[i].loss);
    check_refused("--head-stash: with the linear layer that --head auto makes here a loss keeps no",
                  "--synthetic 4 --optimizer lars --head-stash 0.5");
    check_refused("--head-stash: with the linear layer", "--synthetic 4 --cuda-graph --head-stash 0");
}
END_TEST

START_TEST(test_refusals)
{
    check_refused("--model-parallel-dim column", "--synthetic 4 --head fused --enable-model-parallel --model-parallel-dim row");
    check_refused("--head: there is no \"fuse\"", "--synthetic 4 --head fuse");
    check_runs(shardrun(2), EXACT "--head auto --enable-model-parallel --model-parallel-dim row --steps 1");
}
END_TEST

/* test_imagenet_head [CASE]: one test case, or both. */
int main(int argc, char **argv)
{
    if (argc > 1)
        setenv("CK_RUN_CASE", argv[1], 1);
    Suite *suite = suite_create("imagenet_head");
    TCase *more = test_case(suite, "more"), *tcase = test_case(suite, "usual");
    tcase_set_timeout(more, 180);
    tcase_set_timeout(tcase, 180);
    tcase_add_unchecked_fixture(more, make_run_folder, drop_single);
    tcase_add_unchecked_fixture(tcase, make_run_folder, drop_single);
    tcase_add_loop_test(more, test_as_plain, FIRST, SETTINGS);
    tcase_add_loop_test(tcase, test_as_plain, 0, FIRST);
    tcase_add_loop_test(tcase, test_half, 0, sizeof half / sizeof *half);
    tcase_add_test(tcase, test_stash_chooses);
    tcase_add_test(tcase, test_refusals);
    return test_run(suite);
}
