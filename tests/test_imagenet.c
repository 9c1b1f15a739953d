/*
 * projects/imagenet on one rank and on several that shardrun starts: the same numbers
 * on any number of ranks, checkpoints, signals, image folders, the command line.
 */
#include "support/pictures.h"
#include "support/trainer.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void check_files_equal(const char *one, const char *other)
{
    char command[256];
    snprintf(command, sizeof command, "cmp %s/%s %s/%s >&2", run_folder, one, run_folder, other);
    ck_assert_msg(run_command(command) == 0, "%s and %s differ", one, other);
}

/* ---- the same on any number of ranks ---- */

typedef struct setting {
    int ranks;
    const char *options;
} setting;

/* And what the trainer says of the mesh, and how many of a batch of 12 images go through each
 * rank's model. The first ones are the test case "usual", the others "more". */
static const struct {
    int ranks;
    const char *options, *mesh;
    int images;
} settings[] = {
    {3, "--enable-model-parallel --model-parallel-dim -1", "1 data parallel x 3 model parallel, the last layer split by column",
     4},
    {4, "--enable-model-parallel --model-parallel-dim 0 --model-parallel-size 2",
     "2 data parallel x 2 model parallel, the last layer split by row", 3},
    {3, "", "3 data parallel x 1 model parallel, sync", 4},
    {4, "--enable-model-parallel --model-parallel-dim row --model-parallel-size 2 --same-batch-in-group",
     "2 data parallel x 2 model parallel, the last layer split by row", 6},
    {2, "", "2 data parallel x 1 model parallel, sync", 6},
    {4, "--enable-model-parallel --model-parallel-dim column",
     "1 data parallel x 4 model parallel, the last layer split by column", 3},
    {4, "--enable-model-parallel --model-parallel-dim row", "1 data parallel x 4 model parallel, the last layer split by row",
     3},
    {4, "--enable-model-parallel --model-parallel-dim column --model-parallel-size 2",
     "2 data parallel x 2 model parallel, the last layer split by column", 3},
    {3, "--enable-model-parallel --model-parallel-dim column --same-batch-in-group",
     "1 data parallel x 3 model parallel, the last layer split by column", 12},
};
enum { FIRST = 2, SETTINGS = sizeof settings / sizeof *settings };

/* At a rate that learns. In float32 rounding makes the sign of a few relu inputs differ,
 * and the runs part within some steps; in float64 only what is computed otherwise shows.
 * The last batch of an epoch has 4 images. */
#define EXACT                                                                                                                    \
    "-a resnet18 --stem small --width 8 --image-size 8 --synthetic 34 --num-classes 11 -b 6 --lr 0.01 -j 1 --seed 7 --dtype "    \
    "float64 "                                                                                                                   \
    "--val-interval 0 "

static const setting exact[] = {
    {4, "--sync-bn --enable-model-parallel --model-parallel-dim row --model-parallel-size 2"},
    {3, "--sync-bn --enable-model-parallel --model-parallel-dim column"},
};
enum { FIRST_EXACT = 1, EXACTS = sizeof exact / sizeof *exact, EXACT_STEPS = 8 /* an epoch has 6 */ };

START_TEST(test_exactly_the_same)
{
    check_runs("", EXACT "--steps %d --metrics exact.json", EXACT_STEPS);
    check_runs(shardrun(exact[_i].ranks), EXACT "%s --steps %d --metrics parallel.json", exact[_i].options, EXACT_STEPS);
    check_metrics_agree("parallel.json", "exact.json", 1e-7);
}
END_TEST

START_TEST(test_any_number_of_ranks)
{
    int ranks = settings[_i].ranks;
    drop_log();
    check_runs(shardrun(ranks), RUN "--sync-bn %s --steps %d --metrics ranks.json", settings[_i].options, STEPS);
    check_metrics_agree("ranks.json", "single.json", ROUNDING);
    line lines[MOST_LINES];
    ck_assert_int_eq(read_metrics("ranks.json", lines), STEPS + 3); /* an epoch has 6 steps */
    ck_assert_msg(lines[0].loss > 4 && lines[0].loss < 6, "loss %f at first", lines[0].loss);
    ck_assert_msg(lines[STEPS + 2].loss < lines[0].loss, "nothing was learned: loss %f", lines[STEPS + 2].loss);
    ck_assert_msg(strstr(text_of("log"), settings[_i].mesh) != NULL, "no \"%s\" in: %s", settings[_i].mesh, text_of("log"));
    ck_assert_int_eq(lines[0].ranks, ranks);
    for (int rank = 0; rank < ranks; rank++)
        ck_assert_int_eq(lines[0].rank_images[rank], settings[_i].images);
}
END_TEST

/* A step in parts, fewer in an epoch's last: the same parts on any number of ranks, and gone
 * on with on another. */
#define PARTS EXACT "-b 12 --accumulate 2 "

static const setting accumulating[] = {{4, "--enable-model-parallel --model-parallel-size 2 --same-batch-in-group"}, {2, ""}};
enum { FIRST_ACCUMULATING = 1, ACCUMULATING = sizeof accumulating / sizeof *accumulating };

START_TEST(test_accumulates)
{
    check_runs("", PARTS "--steps 6 --metrics accumulated.json");
    line lines[MOST_LINES], whole[MOST_LINES];
    ck_assert_int_eq(read_metrics("accumulated.json", lines), 6);
    check_runs("", EXACT "-b 12 --steps 1 --metrics whole.json");
    ck_assert_int_eq(read_metrics("whole.json", whole), 1);
    for (int i = 0; i < 6; i++)
        ck_assert_int_eq(lines[i].images, i % 3 == 2 ? 10 : 12);
    ck_assert_msg(fabs(lines[0].loss - whole[0].loss) > 1e-6, "batch norms saw no parts");
    check_runs(shardrun(accumulating[_i].ranks), PARTS "--sync-bn %s --steps 4 --metrics parts.json --output parts --overwrite",
               accumulating[_i].options);
    check_runs("", PARTS "--steps 6 --metrics parts.json --resume parts/checkpoint.safetensors");
    check_metrics_agree("parts.json", "accumulated.json", 1e-7);
}
END_TEST

/* Optimizers, clipping and ZeRO's stages on several ranks as on one, and gone on with on one. */
static const struct {
    int ranks;
    const char *common, *options;
} mixed[] = {
    {4, "--optimizer adamw --accumulate 2", "--enable-zero-optim 2 --enable-model-parallel --model-parallel-size 2"},
    {2, "--optimizer lamb --clip-grad 2", "--enable-model-parallel --enable-zero-optim 3 --same-batch-in-group"},
    {3, "--clip-grad 0.5", "--enable-zero-optim"},
    {4, "--optimizer adam --clip-grad 1", "--enable-model-parallel --model-parallel-dim row --enable-zero-optim=3"},
    {3, "--optimizer lars", "--enable-zero-optim 2"},
};
enum { FIRST_MIXED = 1, MIXED = sizeof mixed / sizeof *mixed };

START_TEST(test_mixes)
{
    const char *common = mixed[_i].common;
    check_runs("", EXACT "-b 12 --lr 0.001 %s --steps 7 --metrics mixed-one.json", common);
    check_runs(shardrun(mixed[_i].ranks),
               EXACT "-b 12 --lr 0.001 --sync-bn %s %s --steps 4 --metrics mixed.json --output mixed --overwrite", common,
               mixed[_i].options);
    check_runs("", EXACT "-b 12 --lr 0.001 %s --steps 7 --metrics mixed.json --resume mixed/checkpoint.safetensors", common);
    check_metrics_agree("mixed.json", "mixed-one.json", 1e-7);
}
END_TEST

static const setting half[] = {
    {3, "--enable-amp-mode fp16 --enable-model-parallel --model-parallel-dim row --clip-grad 100"},
    {2, "--enable-amp-mode bf16 --enable-zero-optim 1"},
    {4, "--enable-model-parallel --model-parallel-size 2 --enable-zero-optim 3 --enable-amp-mode"},
};
enum { FIRST_HALF = 1, HALF = sizeof half / sizeof *half };

/* Two batches over and over, at a rate that learns them. */
#define HALF_RUN RUN "--sync-bn --val-interval 0 --synthetic 24 --lr 0.005 "

/* In 16 bits: the float32 run, but for a small part of what its steps did, and gone on with to the bit. */
START_TEST(test_half)
{
    const setting *s = &half[_i];
    line whole[MOST_LINES], single[MOST_LINES], untrained[MOST_LINES];
    check_runs("", HALF_RUN "--steps 8 --metrics float32.json");
    check_runs("", HALF_RUN "--lr 1e-30 --steps 8 --metrics untrained.json");
    check_runs(shardrun(s->ranks), HALF_RUN "%s --steps 8 --metrics half.json --output half --overwrite", s->options);
    ck_assert_int_eq(read_metrics("float32.json", single), 8);
    ck_assert_int_eq(read_metrics("untrained.json", untrained), 8);
    ck_assert_int_eq(read_metrics("half.json", whole), 8);
    double learned = untrained[7].loss - single[7].loss;
    ck_assert_msg(learned > 1, "8 steps take %f off the loss", learned);
    for (int i = 0; i < 8; i++)
        ck_assert_msg(fabs(whole[i].loss - single[i].loss) < 0.04 * learned, "step %d: loss %f, %f in float32, %f untrained",
                      i + 1, whole[i].loss, single[i].loss, untrained[i].loss);
    ck_assert_msg(fabs(whole[0].loss - single[0].loss) > 1e-5, "nothing was computed in 16 bits");
    check_runs(shardrun(s->ranks), HALF_RUN "%s --steps 5 --output part --overwrite", s->options);
    check_runs(shardrun(s->ranks), HALF_RUN "%s --steps 8 --output part --resume part/checkpoint.safetensors", s->options);
    check_files_equal("half/checkpoint.safetensors", "part/checkpoint.safetensors");
}
END_TEST

/* A step that goes far too far, and none is finite after it: its lines and its metrics say which were
 * left out, for which the factor is halved. */
START_TEST(test_left_out)
{
    line lines[MOST_LINES];
    check_runs("", HALF_RUN "--enable-amp-mode fp16 --lr 1e30 --print-freq 1 --steps 3 --metrics left.json");
    int left_out = 0;
    double scale = 65536;
    ck_assert_int_eq(read_metrics("left.json", lines), 3);
    for (int i = 0; i < 3; i++) {
        scale = lines[i].left_out ? scale / 2 : scale;
        ck_assert_msg(lines[i].grad_scale == scale, "step %d: the factor is %g, not %g", i + 1, lines[i].grad_scale, scale);
        left_out += lines[i].left_out;
    }
    ck_assert_msg(scale == ldexp(65536, -left_out) && left_out > 0 && left_out < 3, "%d steps left out", left_out);
    left_out = 0;
    const char *log = text_of("log");
    for (const char *at = log; (at = strstr(at, "  skipped: gradients not finite\n")); at++)
        left_out++;
    ck_assert_msg(left_out > 0 && left_out < 3, "%d of 3 steps say it: %s", left_out, log);
}
END_TEST

START_TEST(test_memory_report)
{
    check_runs(shardrun(2), RUN "--enable-model-parallel --steps 2 --val-interval 0 --memory-report");
    const char *log = text_of("log");
    ck_assert_msg(strstr(log, ": memory of cpu, MiB\n") && strstr(log, "\n  optimizer state "), "no report in %s", log);
}
END_TEST

/* Without --sync-bn each rank normalizes by its own images: the loss is another, but
 * validation must not depend on who computes it. */
START_TEST(test_first_ranks_statistics_count)
{
    check_runs(shardrun(2), RUN "--enable-model-parallel --steps 6 --metrics own.json --output own");
    line trained[MOST_LINES], evaluated[MOST_LINES];
    ck_assert_int_eq(read_metrics("own.json", trained), 7);
    ck_assert(trained[6].validation);
    check_runs("", RUN "-e --resume own/checkpoint.safetensors --metrics evaluated.json");
    ck_assert_int_eq(read_metrics("evaluated.json", evaluated), 1);
    ck_assert_msg(fabs(evaluated[0].loss - trained[6].loss) < 1e-5, "%f on one rank, %f on two", evaluated[0].loss,
                  trained[6].loss);
    ck_assert_double_eq(evaluated[0].top5, trained[6].top5);
}
END_TEST

/* ---- memory ---- */

/* A head so large that it and the logits cannot hide behind the backbone. */
typedef enum head { PLAIN, ROW, CLASSIFIER } head;

static const struct {
    int ranks;
    head head;
    const char *options;
} memories[] = {{1, PLAIN, ""},
                {2, PLAIN, "--model-parallel-dim column --head plain"},
                {2, ROW, "--model-parallel-dim row"},
                {2, CLASSIFIER, "--model-parallel-dim column"}};

/* The README's formula for a batch of 120 images of 8 x 8 and 50,000 classes. */
static double memory_mib(int ranks, head of)
{
    double backbone = 11168832, classes = 50000, layer = classes * (512 + 1), images = 120;
    double logits = of == CLASSIFIER ? 0 : of == ROW ? 12 * images * classes : 4 * images * classes / ranks;
    double each = of == CLASSIFIER ? 8.5 : 12;
    return (12 * backbone + each * layer / ranks + logits) / 1048576 + 4.5 / 16 * images / ranks + 20;
}

START_TEST(test_memory)
{
    int ranks = memories[_i].ranks;
    check_runs(shardrun(ranks),
               "-a resnet18 --stem small --image-size 8 --synthetic 240 --num-classes 50000 -b 120 --lr 1e-5 -j 1 --steps 2 "
               "--val-interval 0 --metrics memory.json %s %s",
               ranks > 1 ? "--enable-model-parallel" : "", memories[_i].options);
    line lines[MOST_LINES];
    ck_assert_int_eq(read_metrics("memory.json", lines), 2);
    double formula = memory_mib(ranks, memories[_i].head), peak = lines[1].peak_mib;
    ck_assert_msg(fabs(peak / formula - 1) < 0.1, "a peak of %f MiB, %f by the formula", peak, formula);
}
END_TEST

/* Each stage of ZeRO takes its 4 bytes a parameter away, but for a rank's part and, where gradients
 * and values come and go, the buckets in flight. */
START_TEST(test_zero_takes_memory_away)
{
    const int ranks = 3;
    const double shared = 4.0 * 11174475 * (ranks - 1) / ranks / 1048576, buckets[] = {0, 0, 10, 10};
    double before = 0;
    for (int stage = 0; stage <= 3; stage++) {
        char option[32] = "";
        if (stage)
            snprintf(option, sizeof option, "--enable-zero-optim %d", stage);
        check_runs(shardrun(ranks), EXACT "--width 64 --dtype float32 --bucket-mib 1 --steps 2 --metrics stage.json %s", option);
        line lines[MOST_LINES];
        ck_assert_int_eq(read_metrics("stage.json", lines), 2);
        double peak = lines[1].peak_mib, fell = before - peak;
        ck_assert_msg(stage == 0 || (fell > shared - buckets[stage] - 4 && fell < shared + 4),
                      "stage %d takes %f MiB off the peak of the one before, %f expected", stage, fell, shared);
        before = peak;
    }
}
END_TEST

/* ---- what is learned ---- */

#define LEARN "-a resnet18 --stem small --image-size 8 --synthetic 200 --num-classes 20 -b 20 -j 1 --seed 7 "

static const setting learned[] = {
    {2, "--sync-bn --enable-model-parallel --model-parallel-dim column"},
    {3, "--sync-bn --enable-model-parallel --model-parallel-dim row"},
    {4, "--sync-bn --enable-model-parallel --model-parallel-dim column --model-parallel-size 2"},
};

/* The best checkpoint stays when a later epoch is worse: here one with far too large an lr. */
static void spoil_learned(double best)
{
    line lines[MOST_LINES];
    check_runs("", LEARN "--epochs 4 --lr 0.1 --metrics spoilt.json --output learned --resume learned/checkpoint.safetensors");
    ck_assert_int_eq(read_metrics("spoilt.json", lines), 11);
    ck_assert_msg(lines[10].top1 < best / 2, "top1 %g after an epoch that should have spoilt it, %g before", lines[10].top1,
                  best);
    check_runs("", LEARN "-e --resume learned/best.safetensors --metrics spoilt.json");
    ck_assert_int_eq(read_metrics("spoilt.json", lines), 12); /* it keeps the lines of the training */
    ck_assert_double_eq(lines[11].top1, best);
}

/* A run that learns has the same accuracy on any number of ranks. */
START_TEST(test_learns)
{
    line lines[MOST_LINES];
    check_runs("", LEARN "--epochs 3 --lr 0.0015 --metrics learned.json --output learned");
    ck_assert_int_eq(read_metrics("learned.json", lines), 33);
    double top1 = lines[32].top1, top5 = lines[32].top5;
    ck_assert_msg(lines[32].validation && top1 > 50 && top5 > top1, "top1 %g, top5 %g of 20 classes", top1, top5);
    check_runs("", LEARN "--epochs 4 --lr 1e-6 --metrics further.json --resume learned/checkpoint.safetensors");
    for (size_t i = 0; i < sizeof learned / sizeof *learned; i++) {
        char name[32];
        snprintf(name, sizeof name, "further-%zu.json", i);
        check_runs(shardrun(learned[i].ranks),
                   LEARN "%s --epochs 4 --lr 1e-6 --metrics %s --resume learned/checkpoint.safetensors", learned[i].options,
                   name);
        check_metrics_agree(name, "further.json", 1e-5);
    }
    spoil_learned(top1);
}
END_TEST

/* ---- resuming ---- */

static const setting resumed[] = {{2, "--enable-model-parallel --nesterov --label-smoothing 0.1 --lr-schedule cosine"}, {1, ""}};
enum { FIRST_RESUMED = 1, RESUMED = sizeof resumed / sizeof *resumed };

/* In the middle of an epoch, and at its end. */
START_TEST(test_resume_to_the_bit)
{
    const setting *s = &resumed[_i];
    check_runs(shardrun(s->ranks), RUN "%s --steps 14 --metrics whole.json --output whole --overwrite", s->options);
    check_runs(shardrun(s->ranks), RUN "%s --steps 4 --metrics parts.json --output parts --overwrite", s->options);
    check_runs(shardrun(s->ranks), RUN "%s --steps 12 --metrics parts.json --output parts --resume parts/checkpoint.safetensors",
               s->options);
    check_runs(shardrun(s->ranks), RUN "%s --steps 14 --metrics parts.json --output parts --resume parts/checkpoint.safetensors",
               s->options);
    line whole[MOST_LINES], parts[MOST_LINES];
    int count = read_metrics("whole.json", whole);
    ck_assert_int_eq(count, 16);
    ck_assert_int_eq(read_metrics("parts.json", parts), count);
    for (int i = 0; i < count; i++) {
        ck_assert_int_eq(whole[i].step, parts[i].step);
        ck_assert_msg(strcmp(whole[i].loss_text, parts[i].loss_text) == 0, "step %d: loss %s, resumed %s", whole[i].step,
                      whole[i].loss_text, parts[i].loss_text);
    }
    check_files_equal("whole/checkpoint.safetensors", "parts/checkpoint.safetensors");
    check_files_equal("whole/best.safetensors", "parts/best.safetensors");
}
END_TEST

START_TEST(test_resume_on_other_ranks)
{
    check_runs(shardrun(2), RUN "--sync-bn --enable-model-parallel --steps 9 --metrics moved.json --output moved --overwrite");
    check_runs(shardrun(3),
               RUN "--sync-bn --enable-model-parallel --model-parallel-dim row --steps %d --metrics moved.json "
                   "--resume moved/checkpoint.safetensors",
               STEPS);
    check_metrics_agree("moved.json", "single.json", ROUNDING);
}
END_TEST

START_TEST(test_resume_refuses_another_run)
{
    check_refused("arch", RUN "--resume single/checkpoint.safetensors -a resnet34");
    check_refused("num_classes is 101, not 102", RUN "--resume single/checkpoint.safetensors --num-classes 102");
    check_refused("batch_size", RUN "--resume single/checkpoint.safetensors -b 11");
    check_refused("seed", RUN "--resume single/checkpoint.safetensors --seed 8");
    check_refused("nothing.safetensors", RUN "--resume nothing.safetensors");
}
END_TEST

/* ---- interrupted ---- */

static void wait_for_lines(const char *name, int lines)
{
    char command[256];
    snprintf(command, sizeof command,
             "cd %s; for i in $(seq 600); do [ $(cat %s 2>/dev/null | wc -l) -ge %d ] && exit; sleep 0.1; done", run_folder, name,
             lines);
    run_command(command);
}

START_TEST(test_interrupt_saves)
{
    char command[1024];
    snprintf(command, sizeof command, "cd %s && exec %s %s " RUN "--epochs 1000 --metrics cut.json --output cut %s >>log 2>&1",
             run_folder, shardrun(2), getenv("IMAGENET"), _i == 0 ? "" : "--save-async --save-every 1");
    pid_t child = fork();
    if (child == 0) {
        execl("/bin/sh", "sh", "-c", command, NULL);
        _exit(127);
    }
    wait_for_lines("cut.json", 3);
    kill(child, SIGINT);
    int status;
    waitpid(child, &status, 0);
    ck_assert_msg(!WIFEXITED(status) || WEXITSTATUS(status) != 0, "an interrupted run must not exit with 0");
    ck_assert_msg(strstr(text_of("log"), "interrupted after step") != NULL, "%s", text_of("log"));
    static line lines[MOST_LINES];
    int count = read_metrics("cut.json", lines), last = lines[count - 1].step;
    check_runs(shardrun(2), RUN "--epochs 1000 --steps %d --resume cut/checkpoint.safetensors --metrics cut.json", last + 1);
    int more = read_metrics("cut.json", lines);
    ck_assert_int_gt(more, count);
    ck_assert_int_eq(lines[more - 1].step, last + 1);
}
END_TEST

/* ---- image folders ---- */

START_TEST(test_damaged_image)
{
    make_images();
    check_runs(shardrun(2), FOLDER_RUN "--sync-bn --metrics sound.json");
    line lines[MOST_LINES];
    ck_assert_int_eq(read_metrics("sound.json", lines), 3); /* two steps and the validation */
    ck_assert_int_eq(lines[0].images + lines[1].images, 12);
    ck_assert_int_eq(lines[2].images, 3);

    bytes damage = {.data = (uint8_t *)"no picture", .size = 10};
    write_file(damage, "%s/images/train/class1/2.png", run_folder);
    for (int ranks = 1; ranks <= 2; ranks++)
        check_refused_on(ranks, "class1/2.png", FOLDER_RUN);
    check_runs("", FOLDER_RUN "--skip-bad-images 1 --dtype float64 --metrics one.json");
    check_runs(shardrun(4), FOLDER_RUN "--skip-bad-images 1 --dtype float64 --sync-bn --enable-model-parallel --model-parallel-size 2 "
                                       "--metrics four.json");
    check_metrics_agree("four.json", "one.json", 1e-7);
    ck_assert_int_eq(read_metrics("one.json", lines), 3);
    ck_assert_int_eq(lines[0].images + lines[1].images, 11);

    write_file(damage, "%s/images/train/class0/1.png", run_folder);
    check_refused("class", FOLDER_RUN "--skip-bad-images 1");
    check_refused_on(2, "2 damaged images, more than --skip-bad-images 1", FOLDER_RUN "--skip-bad-images 1");
}
END_TEST

/* With two ranks each has one of the two. */
START_TEST(test_damaged_validation_image)
{
    make_images();
    check_runs("", FOLDER_RUN "--steps 1 --val-interval 0 --output folder");
    bytes damage = {.data = (uint8_t *)"no picture", .size = 10};
    write_file(damage, "%s/images/val/class0/4.png", run_folder);
    write_file(damage, "%s/images/val/class2/4.png", run_folder);
    line lines[2][1];
    for (int ranks = 1; ranks <= 2; ranks++) {
        check_refused_on(ranks, "class0/4.png", FOLDER_RUN "-e --resume folder/checkpoint.safetensors");
        check_refused_on(ranks, ranks == 1 ? "class0/4.png" : "2 damaged images, more than --skip-bad-images 1",
                         FOLDER_RUN "-e --resume folder/checkpoint.safetensors --skip-bad-images 1");
        drop_file("one-left.json");
        check_runs(shardrun(ranks),
                   FOLDER_RUN "-e --resume folder/checkpoint.safetensors --skip-bad-images 2 --metrics one-left.json");
        ck_assert_int_eq(read_metrics("one-left.json", lines[ranks - 1]), 1);
        ck_assert_int_eq(lines[ranks - 1]->images, 1);
    }
    ck_assert(fabs(lines[0]->loss - lines[1]->loss) <= 1e-5);
}
END_TEST

/* ---- the command line ---- */

START_TEST(test_help_and_refusals)
{
    check_runs("", "--help");
    ck_assert_ptr_nonnull(strstr(text_of("log"), "--model-parallel-dim"));
    check_refused("there is no \"resnet19\"", "--synthetic 4 -a resnet19");
    check_refused_on(3, "there is no \"resnet19\"", "--synthetic 4 -a resnet19");
    check_refused("DIR", "-a resnet18");
    check_refused("\"x\" is not a whole number", "--synthetic 4 -b x");
    check_refused("--nothing", "--synthetic 4 --nothing");
    check_refused("there is no option \"-x\"", "--synthetic 4 -xe");
    check_refused("needs a value", "--synthetic 4 --lr");
    check_refused("--enable-model-parallel", "--synthetic 4 --model-parallel-size 2");
    check_refused("--same-batch-in-group", "--synthetic 4 --same-batch-in-group");
    check_refused("not that many equal parts", "--synthetic 4 -b 10 --accumulate 3");
    check_refused("there is no \"fp8\"", "--synthetic 4 --enable-amp-mode=fp8");
    check_refused("--dtype float32", "--synthetic 4 --enable-amp-mode fp16 --dtype float64");
    check_refused("--enable-zero-optim: there is no \"4\"", "--synthetic 4 --enable-zero-optim 4");
    check_refused("--enable-zero-optim: there is no \"4\"", "--enable-zero-optim 4 single");
    check_refused("--enable-amp-mode: there is no \"fp8\"", "--enable-amp-mode fp8");
    check_refused("single/train", "--enable-amp-mode single"); /* a folder */
    check_refused("either DIR", "--synthetic 4 --enable-zero-optim single");
    check_refused("optimizer is sgd, not lamb", RUN "--resume single/checkpoint.safetensors --optimizer lamb");
    check_refused("groups of 2 do not divide the world's 1 ranks", RUN "--enable-model-parallel --model-parallel-size 2");
    check_refused("nowhere/train", "-a resnet18 nowhere");
}
END_TEST

START_TEST(test_loss_that_is_not_finite)
{
    check_refused("--lr", RUN "--lr 1e30 --steps 5 --output burnt");
    char path[128];
    struct stat status;
    snprintf(path, sizeof path, "%s/burnt/checkpoint.safetensors", run_folder);
    ck_assert_msg(stat(path, &status) != 0, "what diverged was saved");
}
END_TEST

static TCase *trainer_case(Suite *suite, const char *name)
{
    TCase *tcase = test_case(suite, name);
    tcase_set_timeout(tcase, 180);
    tcase_add_unchecked_fixture(tcase, make_single, drop_single);
    return tcase;
}

/* test_imagenet [CASE]: one test case, or both. */
int main(int argc, char **argv)
{
    if (argc > 1)
        setenv("CK_RUN_CASE", argv[1], 1);
    Suite *suite = suite_create("imagenet");
    TCase *more = trainer_case(suite, "more"), *tcase = trainer_case(suite, "usual");
    tcase_add_loop_test(more, test_any_number_of_ranks, FIRST, SETTINGS);
    tcase_add_loop_test(more, test_mixes, FIRST_MIXED, MIXED);
    tcase_add_loop_test(more, test_half, FIRST_HALF, HALF);
    tcase_add_loop_test(more, test_accumulates, FIRST_ACCUMULATING, ACCUMULATING);
    tcase_add_loop_test(more, test_exactly_the_same, FIRST_EXACT, EXACTS);
    tcase_add_loop_test(more, test_resume_to_the_bit, FIRST_RESUMED, RESUMED);
    tcase_add_test(more, test_learns);
    tcase_add_test(more, test_damaged_validation_image);
    tcase_add_loop_test(tcase, test_any_number_of_ranks, 0, FIRST);
    tcase_add_loop_test(tcase, test_accumulates, 0, FIRST_ACCUMULATING);
    tcase_add_loop_test(tcase, test_mixes, 0, FIRST_MIXED);
    tcase_add_loop_test(tcase, test_half, 0, FIRST_HALF);
    tcase_add_test(tcase, test_left_out);
    tcase_add_test(tcase, test_memory_report);
    tcase_add_loop_test(tcase, test_exactly_the_same, 0, FIRST_EXACT);
    tcase_add_test(tcase, test_first_ranks_statistics_count);
    tcase_add_loop_test(tcase, test_memory, 0, sizeof memories / sizeof *memories);
    tcase_add_test(tcase, test_zero_takes_memory_away);
    tcase_add_loop_test(tcase, test_resume_to_the_bit, 0, FIRST_RESUMED);
    tcase_add_test(tcase, test_resume_on_other_ranks);
    tcase_add_test(tcase, test_resume_refuses_another_run);
    tcase_add_loop_test(tcase, test_interrupt_saves, 0, 2);
    tcase_add_test(tcase, test_damaged_image);
    tcase_add_test(tcase, test_help_and_refusals);
    tcase_add_test(tcase, test_loss_that_is_not_finite);
    return test_run(suite);
}
