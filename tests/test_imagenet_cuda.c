/* projects/imagenet with --device cuda: the losses of the CPU, whether ranks have a GPU each
 * (of an emulated device) or share one; a checkpoint goes from one device to the other. */
#include "support/trainer.h"
#include "support/pictures.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Uneven on two ranks. */
#define SHORT                                                                                                                    \
    "-a resnet18 --stem small --width 8 --image-size 8 --synthetic 22 --num-classes 101 -b 11 --lr 1e-5 -j 2 --seed 7 --epochs " \
    "1 "

static void make_runs(void)
{
    make_folder(run_folder);
    setenv("OMP_NUM_THREADS", "1", 1);
    setenv("SHARD_LOG", "info", 1);
    if (run("", SHORT "--device cpu --metrics cpu.json --output cpu") != 0)
        fprintf(stderr, "the run on the CPU failed: %s\n", text_of("log"));
}

/* The first ones are run in every check. */
static const struct {
    int ranks;
    const char *gpus, *options, *said;
} settings[] = {
    {1, "1", "", "device cuda:0 is open"},
    {2, "2", "--sync-bn --enable-model-parallel --model-parallel-dim row", "go through NCCL"},
    {2, "1", "--sync-bn --enable-model-parallel", "go through host memory: ranks 0 and 1 share a GPU"},
    {4, "4", "--sync-bn --enable-model-parallel --model-parallel-size 2", "go through NCCL"},
};
enum { FIRST = 2, SETTINGS = sizeof settings / sizeof *settings };

START_TEST(test_same_losses)
{
    setenv("SHARD_CUDA_EMULATION_DEVICES", settings[_i].gpus, 1);
    check_runs(shardrun(settings[_i].ranks), SHORT "--device cuda %s --metrics cuda.json", settings[_i].options);
    check_metrics_agree("cuda.json", "cpu.json", 1e-5);
    ck_assert_msg(strstr(text_of("log"), settings[_i].said) != NULL, "nothing says \"%s\": %s", settings[_i].said,
                  text_of("log"));
}
END_TEST

/* A loss that is no number ends the run with the message that names its step, one step later at most where the device
 * queues: the lines before it are there, and no checkpoint has what came of it. */
START_TEST(test_diverges)
{
    static const char *const devices[] = {"cpu", "cuda"};
    char said[2][256];
    int lines[2];
    for (int i = 0; i < 2; i++) {
        line found[MOST_LINES];
        drop_log();
        ck_assert_int_eq(
            run("", SHORT "-b 4 --lr 1e30 --device %s --metrics %s_diverged.json --output diverged", devices[i], devices[i]), 1);
        const char *text = strstr(text_of("log"), "the loss of step ");
        ck_assert_msg(text != NULL, "no loss is blamed: %s", text_of("log"));
        snprintf(said[i], sizeof said[i], "%.*s", (int)(strstr(text, " is ") - text), text);
        lines[i] = read_metrics(i ? "cuda_diverged.json" : "cpu_diverged.json", found);
        ck_assert_int_ge(lines[i], 1);
    }
    ck_assert_str_eq(said[1], said[0]);
    ck_assert_int_eq(lines[1], lines[0]);
    char command[160];
    snprintf(command, sizeof command, "! ls %s/diverged/*.safetensors 2>/dev/null", run_folder);
    ck_assert_msg(run_command(command) == 0, "a checkpoint was saved");
}
END_TEST

START_TEST(test_checkpoints)
{
    check_runs("", SHORT "-e --device cpu --resume cpu/checkpoint.safetensors --metrics cpu_evaluated.json");
    check_runs("", SHORT "-e --device cuda --resume cpu/checkpoint.safetensors --metrics cuda_evaluated.json");
    check_metrics_agree("cuda_evaluated.json", "cpu_evaluated.json", 1e-5);
    check_runs(shardrun(2), SHORT "--device cuda --sync-bn --enable-model-parallel --val-interval 0 --output cuda");
    drop_file("cuda_evaluated.json");
    check_runs("", SHORT "-e --device cpu --resume cuda/checkpoint.safetensors --metrics cuda_evaluated.json");
    check_metrics_agree("cuda_evaluated.json", "cpu_evaluated.json", 1e-4);
}
END_TEST

/* 3 full batches and a part of one an epoch. */
#define GRAPHED                                                                                                                  \
    "-a resnet18 --stem small --width 8 --image-size 8 --synthetic 14 --num-classes 11 -b 4 --lr 1e-3 -j 1 --seed 7 "            \
    "--epochs 2 --val-interval 0 --lr-schedule cosine --clip-grad 1 --device cuda "

static void check_same_file(const char *name, const char *other)
{
    char command[256];
    snprintf(command, sizeof command, "cd %s && cmp %s %s", run_folder, name, other);
    ck_assert_msg(run_command(command) == 0, "%s and %s differ", name, other);
}

/* Replayed steps and eager ones, in a run that is interrupted between replays, give the bits of eager ones. */
START_TEST(test_graph)
{
    static const char *const heads[] = {"", "--head plain --margin arcface:0.5", "--head plain --margin adaface:0.4,0.333"};
    const char *head = heads[_i];
    check_runs("", GRAPHED "%s --metrics eager.json --output eager --overwrite", head);
    check_runs("", GRAPHED "%s --cuda-graph --metrics graph.json --output graph --overwrite --steps 3", head);
    ck_assert_msg(strstr(text_of("log"), "captured a step in a CUDA graph") != NULL, "no graph: %s", text_of("log"));
    drop_log();
    check_runs("", GRAPHED "%s --cuda-graph --metrics graph.json --output graph --resume graph/checkpoint.safetensors", head);
    ck_assert_msg(strstr(text_of("log"), "captured a step in a CUDA graph") != NULL, "no graph: %s", text_of("log"));
    line eager[MOST_LINES], graph[MOST_LINES];
    int count = read_metrics("eager.json", eager);
    ck_assert_int_eq(count, 8);
    ck_assert_int_eq(read_metrics("graph.json", graph), count);
    for (int i = 0; i < count; i++)
        ck_assert_str_eq(graph[i].loss_text, eager[i].loss_text);
    check_same_file("eager/checkpoint.safetensors", "graph/checkpoint.safetensors");
}
END_TEST

START_TEST(test_graph_refuses)
{
    static const char *const refused[][2] = {
        {"--device cpu", "--cuda-graph: the device is cpu: only a GPU's work can be captured"},
        {"--device cuda --enable-zero-optim", "--cuda-graph cannot be combined with --enable-zero-optim"},
        {"--device cuda --enable-amp-mode fp16", "--cuda-graph cannot be combined with --enable-amp-mode fp16"},
        {"--device cuda --accumulate 11", "--cuda-graph cannot be combined with --accumulate"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        drop_log();
        ck_assert_int_eq(run("", SHORT "--cuda-graph %s", refused[i][0]), 1);
        ck_assert_msg(strstr(text_of("log"), refused[i][1]) != NULL, "%s: %s", refused[i][0], text_of("log"));
    }
    drop_log();
    ck_assert_int_eq(run(shardrun(2), SHORT "--cuda-graph --device cuda"), 1);
    ck_assert_msg(strstr(text_of("log"), "--cuda-graph is for one rank, but there are 2") != NULL, "2 ranks: %s", text_of("log"));
}
END_TEST

START_TEST(test_no_gpu)
{
    setenv("SHARD_CUDA_EMULATION_DEVICES", "-1", 1);
    ck_assert_int_eq(run("", SHORT "--device cuda"), 1);
    ck_assert_msg(strstr(text_of("log"), "cuda: no GPU here") != NULL, "no GPU, but: %s", text_of("log"));
}
END_TEST

static TCase *trainer_case(Suite *suite, const char *name)
{
    TCase *tcase = test_case(suite, name);
    tcase_set_timeout(tcase, 180);
    tcase_add_unchecked_fixture(tcase, make_runs, drop_single);
    return tcase;
}

/* test_imagenet_cuda [CASE]: one test case, or both. */
int main(int argc, char **argv)
{
    if (argc > 1)
        setenv("CK_RUN_CASE", argv[1], 1);
    Suite *suite = suite_create("imagenet on cuda");
    TCase *more = trainer_case(suite, "more");
    tcase_add_loop_test(more, test_same_losses, FIRST, SETTINGS);
    tcase_set_timeout(more, 400);
    tcase_add_loop_test(more, test_graph, 0, 3);
    tcase_add_test(more, test_graph_refuses);
    TCase *tcase = trainer_case(suite, "usual");
    tcase_add_loop_test(tcase, test_same_losses, 0, FIRST);
    tcase_add_test(tcase, test_diverges);
    tcase_add_test(tcase, test_checkpoints);
    tcase_add_test(tcase, test_no_gpu);
    return test_run(suite);
}
