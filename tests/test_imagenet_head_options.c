/* projects/imagenet with a last layer of its own dtype, optimizer, margin or sampled classes: the same run on any number of
 * ranks, and after a checkpoint the same bits. */
#include "support/trainer.h"

#include <math.h>
#include <stdlib.h>

/* In float64 rounding shows only what is computed otherwise. The last batch of an epoch has 10 images. */
#define RUN_OF(dtype)                                                                                                            \
    "-a resnet18 --stem small --width 8 --image-size 8 --synthetic 22 --num-classes 301 -b 12 --lr 0.002 -j 1 --seed 7 "         \
    "--dtype " dtype " --sync-bn "
#define EXACT RUN_OF("float64")
#define COLUMN "--enable-model-parallel --model-parallel-dim column "
#define ROW "--enable-model-parallel --model-parallel-dim row "

typedef struct setting {
    const char *options, *split; /* split: on 2 ranks */
    double tolerance;            /* of a loss to that of one rank: what rounding makes, of 16 bits or of fast steps */
    bool counts;                 /* training counts accuracy */
} setting;

/* The first ones are the test case "usual", the others "more". */
static const setting settings[] = {
    {"--margin arcface:0.5 --margin-scale 16 --sample-rate 0.2 --accumulate 2 --label-smoothing 0.1 --clip-grad 20 --lr 0.05 "
     "--head-optimizer sgd --wd 0",
     COLUMN, 1e-6, false},
    {"--head-optimizer rowwise-adagrad --head-lr 0.01 --clip-grad 0.5", "--enable-zero-optim 3 ", 1e-6, true},
    {"--head-dtype bfloat16 --head-optimizer rowwise-adam --sample-rate 0.2 --margin cosface:0.3 --margin-scale 8", COLUMN, 0.03,
     false},
    {"--margin arcface:0.5 --margin-scale 16 --label-smoothing 0.1 --clip-grad 20 --lr 0.005", COLUMN, 1e-6, false},
    {"--sample-rate 0.2 --sample-correction --accumulate 2 --head-optimizer sgd --wd 0", COLUMN, 1e-6, false},
    {"--head-dtype bfloat16 --head-rounding kahan --optimizer adamw", "--enable-zero-optim 2 ", 0.03, true},
    {"--margin combined:1.1,0.3,0.2 --margin-scale 16 --head-optimizer momentum --nesterov", ROW, 1e-6, false},
    {"--sample-rate 0.2 --margin sphereface:1.2 --margin-scale 16 --head-optimizer sgd --wd 0 --accumulate 3 --lr 0.05",
     COLUMN "--same-batch-in-group ", 1e-3, false},
    {"--optimizer lamb --head-optimizer adamw --head-lr 0.001", COLUMN "--enable-zero-optim 1 ", 1e-6, true},
    {"--head-optimizer rowwise-adam --head-lr 0.001", "--enable-zero-optim 2 ", 1e-6, true},
    {"--head-dtype float32 --margin cosine --head plain", "", 1e-5, false},
    {"--margin adaface:0.4,0.333 --margin-scale 16 --sample-rate 0.5 --head-optimizer sgd --wd 0 --lr 0.05", COLUMN, 1e-6, false},
    {"--margin adaface:0.4,0.333 --margin-scale 16 --lr 0.05", "", 1e-6, false},
};
enum { FIRST = 3, SETTINGS = sizeof settings / sizeof *settings, STEPS_OF_RUN = 4 /* an epoch has 2, and a validation */ };

static void check_same_bits(const line *a, const line *b, int count)
{
    for (int i = 0; i < count; i++) {
        ck_assert_int_eq(a[i].step, b[i].step);
        ck_assert_msg(a[i].top1 == b[i].top1, "line %d: top-1 %g, not %g", i, a[i].top1, b[i].top1);
        ck_assert_str_eq(a[i].loss_text, b[i].loss_text);
    }
}

START_TEST(test_on_ranks_and_resumed)
{
    const setting *s = &settings[_i];
    line one[MOST_LINES], two[MOST_LINES], again[MOST_LINES];
    check_runs("", EXACT "%s --steps %d --metrics one.json", s->options, STEPS_OF_RUN);
    check_runs(shardrun(2), EXACT "%s %s --steps %d --metrics two.json", s->options, s->split, STEPS_OF_RUN);
    check_runs(shardrun(2), EXACT "%s %s --steps 1 --metrics again.json --output again --overwrite", s->options, s->split);
    check_runs(shardrun(2), EXACT "%s %s --steps %d --metrics again.json --resume again/checkpoint.safetensors", s->options,
               s->split, STEPS_OF_RUN);
    int count = read_metrics("one.json", one);
    ck_assert_int_eq(count, STEPS_OF_RUN + 2); /* with two validations */
    ck_assert_int_eq(read_metrics("two.json", two), count);
    ck_assert_int_eq(read_metrics("again.json", again), count);
    check_same_bits(again, two, count);
    for (int i = 0; i < count; i++)
        ck_assert_msg(fabs(one[i].loss - two[i].loss) <= s->tolerance, "line %d: loss %.9f, on one rank %.9f", i, two[i].loss,
                      one[i].loss);
    ck_assert_msg(one[3].loss + one[4].loss < 0.98 * (one[0].loss + one[1].loss), "nothing was learned: losses %f %f, then %f %f",
                  one[0].loss, one[1].loss, one[3].loss, one[4].loss);
    ck_assert_int_eq(strstr(text_of("one.json"), "\"top1\":null") == NULL, s->counts);
}
END_TEST

/* A classifier normalizes tiles of its weight; a plain layer is made of operations. */
START_TEST(test_margin_as_plain)
{
    static const char margin[] = "--margin combined:1.1,0.3,0.1 --margin-scale 16";
    check_runs("", EXACT "%s --head fused --steps %d --metrics fused.json", margin, STEPS_OF_RUN);
    check_runs("", EXACT "%s --head plain --steps %d --metrics plain.json", margin, STEPS_OF_RUN);
    check_metrics_agree("fused.json", "plain.json", 1e-7);
}
END_TEST

/* A weight that ZeRO 3 streams in row blocks. */
START_TEST(test_streamed_margin)
{
    static const char options[] = EXACT "--num-classes 8300 --margin arcface:0.5 --margin-scale 16 --head-optimizer sgd --wd 0";
    const char *sample = _i ? "--sample-rate 0.2" : "";
    check_runs("", "%s %s --steps 3 --metrics one.json", options, sample);
    check_runs(shardrun(2), "%s %s --steps 3 --metrics two.json --enable-zero-optim 3 --bucket-mib 1", options, sample);
    check_metrics_agree("one.json", "two.json", 1e-6);
}
END_TEST

/* Validation takes neither a margin nor a sample: only the scale of the cosines is in its loss. */
START_TEST(test_validation)
{
    line of_run[MOST_LINES], checked[MOST_LINES];
    check_runs("", EXACT "--margin arcface:0.5 --margin-scale 16 --sample-rate 0.2 --steps 2 --metrics run.json --output run");
    int count = read_metrics("run.json", of_run);
    ck_assert(of_run[count - 1].validation && of_run[count - 1].loss < of_run[count - 2].loss);
    static const char *const others[] = {"--resume run/best.safetensors --margin arcface:0.5 --sample-rate 0.2",
                                         "--pretrained run/model.safetensors --margin cosine",
                                         "--pretrained run/model.safetensors --margin cosface:1 --sample-rate 0.7"};
    for (int i = 0; i < 3; i++) {
        drop_file("checked.json");
        check_runs("", EXACT "-e %s --margin-scale 16 --metrics checked.json", others[i]);
        ck_assert_int_eq(read_metrics("checked.json", checked), 1);
        ck_assert_str_eq(checked[0].loss_text, of_run[count - 1].loss_text);
        ck_assert(checked[0].top1 == of_run[count - 1].top1 && checked[0].top5 == of_run[count - 1].top5);
    }
    drop_file("checked.json");
    check_runs("", EXACT "-e %s --margin-scale 16 --head-dtype bfloat16 --metrics checked.json", others[0]); /* converted */
    ck_assert_int_eq(read_metrics("checked.json", checked), 1);
    ck_assert_double_eq_tol(checked[0].loss, of_run[count - 1].loss, 0.05);
    check_refused("its margin is combined:1,0.5,0, not none; start with the run's own --margin",
                  EXACT "--resume run/checkpoint.safetensors --sample-rate 0.2");
    check_refused("its sample_rate is 0.2, not 0.3; start with the run's own --sample-rate",
                  EXACT "--resume run/checkpoint.safetensors --margin arcface:0.5 --margin-scale 16 --sample-rate 0.3");
    check_refused("its margin is combined:1,0.5,0, not combined:1,0.50000",
                  EXACT "--resume run/checkpoint.safetensors --margin arcface:0.5000001 --margin-scale 16 --sample-rate 0.2");
    check_refused("its margin_scale is 16, not 16.0000",
                  EXACT "--resume run/checkpoint.safetensors --margin arcface:0.5 --margin-scale 16.00001 --sample-rate 0.2");
    check_refused("its sample_rate is 0.2, not 0.20000",
                  EXACT "--resume run/checkpoint.safetensors --margin arcface:0.5 --margin-scale 16 --sample-rate 0.2000001");
    check_refused("its head_optimizer is momentum, not adamw; start with the run's own --head-optimizer",
                  EXACT "--resume run/checkpoint.safetensors --margin arcface:0.5 --margin-scale 16 --sample-rate 0.2 "
                        "--head-optimizer adamw");
    check_refused("its head_dtype is float64, not bfloat16; start with the run's own --head-dtype",
                  EXACT "--resume run/checkpoint.safetensors --margin arcface:0.5 --margin-scale 16 --sample-rate 0.2 "
                        "--head-dtype bfloat16");
}
END_TEST

/* The labels of a folder's batch are known before its images are read. */
START_TEST(test_sample_of_folder)
{
    static const char options[] =
        OWN_FOLDER_RUN "images --num-classes 50 --sample-rate 0.1 --head-optimizer sgd --wd 0 --sync-bn";
    make_images();
    check_runs("", "%s --metrics one.json", options);
    check_runs(shardrun(2), "%s --metrics two.json", options);
    check_metrics_agree("one.json", "two.json", 1e-7);
}
END_TEST

/* A norm that is not finite is clipped with two optimizers as with one: the loss that follows from it ends the run. */
START_TEST(test_not_finite)
{
    check_refused("the loss of step 2 is", RUN_OF("float32") "--clip-grad 1 --lr 1e30 --steps 3");
    check_refused("the loss of step 2 is", RUN_OF("float32") "--clip-grad 1 --lr 1e30 --steps 3 --head-optimizer sgd");
}
END_TEST

/* The cosines' scale makes gradients of features overflow in float16, and not those of the last layer's float32 weight: its
 * optimizer does not step either, so that the validation is that of a run that does not move. */
START_TEST(test_skips_both)
{
    static const char options[] = RUN_OF("float32") "--synthetic 12 --enable-amp-mode fp16 --head-optimizer sgd --epochs 1";
    line skipped[MOST_LINES], still[MOST_LINES];
    check_runs("", "%s --margin cosine --margin-scale 1e6 --metrics skipped.json", options);
    check_runs("", "%s --margin cosine --margin-scale 1e6 --lr 1e-30 --wd 0 --metrics still.json", options);
    ck_assert_int_eq(read_metrics("skipped.json", skipped), 2);
    ck_assert_int_eq(read_metrics("still.json", still), 2);
    ck_assert(skipped[0].left_out && skipped[0].grad_scale == 32768);
    ck_assert_str_eq(skipped[1].loss_text, still[1].loss_text);
}
END_TEST

START_TEST(test_refusals)
{
    check_refused("--margin: \"arcface\" is none of", "--synthetic 4 --margin arcface");
    check_refused("--margin: \"combined:1,2\" is none of", "--synthetic 4 --margin combined:1,2");
    check_refused("--margin: \"cosface:-1\" is none of", "--synthetic 4 --margin cosface:-1");
    check_refused("--margin: \"adaface:0.4\" is none of", "--synthetic 4 --margin adaface:0.4");
    check_refused("--head fused, or leave --head out", "--synthetic 4 --sample-rate 0.5 --head plain");
    check_refused("--model-parallel-dim column", "--synthetic 4 --sample-rate 0.5 " ROW);
    check_refused("--model-parallel-dim column, or adamw", "--synthetic 4 --head-optimizer rowwise-adam " ROW);
    check_refused("--head-dtype bfloat16", "--synthetic 4 --head-rounding kahan");
    check_refused("--momentum above 0", "--synthetic 4 --head-optimizer momentum --momentum 0");
    check_refused("leave it out, or --sample-rate", "--synthetic 4 --sample-rate 0.5 --cuda-graph");
    check_refused("leave it out, or --head-optimizer", "--synthetic 4 --head-lr 0.5 --cuda-graph");
    check_refused("leave it out, or --head fused", "--synthetic 4 --head fused --cuda-graph");
    check_refused("--model-parallel-dim row needs --enable-model-parallel", "--synthetic 4 --model-parallel-dim row");
    check_refused("--sample-rate: \"0\" is not", "--synthetic 4 --sample-rate 0");
    check_refused("--head-stash: \"-1\" is not a number from 0 to 1000000000", "--synthetic 4 --head-stash -1");
    check_refused("--head-stash: with --margin cosine a loss keeps no", "--synthetic 4 --margin cosine --head-stash 0.1");
    check_refused("--head-stash: with --sample-rate a", "--synthetic 4 --sample-rate 0.5 --head-stash 0");
    check_refused("--head-stash: with --head plain a", "--synthetic 4 --head plain --head-stash 1");
    check_refused("--head-dtype: there is no \"float16\"", "--synthetic 4 --head-dtype float16");
}
END_TEST

/* test_imagenet_head_options [CASE]: one test case, or both. */
int main(int argc, char **argv)
{
    if (argc > 1)
        setenv("CK_RUN_CASE", argv[1], 1);
    Suite *suite = suite_create("imagenet_head_options");
    TCase *more = test_case(suite, "more"), *tcase = test_case(suite, "usual");
    tcase_set_timeout(more, 180);
    tcase_set_timeout(tcase, 180);
    tcase_add_unchecked_fixture(more, make_run_folder, drop_single);
    tcase_add_unchecked_fixture(tcase, make_run_folder, drop_single);
    tcase_add_loop_test(more, test_on_ranks_and_resumed, FIRST, SETTINGS);
    tcase_add_loop_test(tcase, test_on_ranks_and_resumed, 0, FIRST);
    tcase_add_test(tcase, test_margin_as_plain);
    tcase_add_loop_test(tcase, test_streamed_margin, 0, 2);
    tcase_add_test(tcase, test_validation);
    tcase_add_test(tcase, test_sample_of_folder);
    tcase_add_test(tcase, test_skips_both);
    tcase_add_test(tcase, test_not_finite);
    tcase_add_test(tcase, test_refusals);
    return test_run(suite);
}
