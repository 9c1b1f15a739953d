/*
 * projects/imagenet where something goes wrong on one rank: a loss that is not finite (--non-finite), and replicas that differ
 * (--check-replicas).
 */
#include "support/pictures.h"
#include "support/ranks.h"
#include "support/trainer.h"

#include <shard/shard.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { CLASSES = 101, FEATURES = 64, LOST_CLASS = 40 };

#define FAULTS_RUN                                                                                                               \
    "-a resnet18 --stem small --width 8 --image-size 16 --synthetic 62 --num-classes 101 -b 12 --lr 1e-3 -j 1 --seed 7 --wd 0 "  \
    "--val-interval 0 "

/* ---- files with a fault ---- */

/* Writes `to`: the file `from` with another value in a run of a tensor's elements. */
static void plant(const char *from, const char *to, const char *name, int64_t start, int64_t count, float value)
{
    char path[128];
    SHARD_SCOPE
    {
        shard_metadata *metadata = NULL;
        snprintf(path, sizeof path, "%s/%s", run_folder, from);
        shard_tensors *file = shard_inspect(path, &metadata);
        check_ok(shard_load(file, path));
        shard_tensor *x = shard_tensors_find(file, name);
        ck_assert_msg(x && shard_numel(x) >= start + count, "no such elements of %s", name);
        size_t size = (size_t)shard_numel(x) * sizeof(float);
        float *values = malloc(size);
        check_ok(shard_copy_to_host(x, values, size));
        for (int64_t i = start; i < start + count; i++)
            values[i] = value;
        check_ok(shard_copy_from_host(x, values, size));
        free(values);
        snprintf(path, sizeof path, "%s/%s", run_folder, to);
        check_ok(shard_save(file, path, metadata));
        shard_metadata_destroy(metadata);
        shard_tensors_destroy(file);
    }
}

/* Writes `to`: the file `from` without checksums, as another program writes it, and with `value` as a tensor's first element. The
 * headers of all such files are equal, so that ranks with different ones are not found when they load. */
static void plant_behind_checksums(const char *from, const char *to, const char *name, float value)
{
    char path[128], key[96];
    struct stat status;
    snprintf(path, sizeof path, "%s/%s", run_folder, from);
    ck_assert(stat(path, &status) == 0);
    bytes content = {.data = malloc((size_t)status.st_size), .size = (size_t)status.st_size};
    FILE *file = fopen(path, "r");
    ck_assert(fread(content.data, 1, content.size, file) == content.size);
    fclose(file);
    uint64_t header;
    memcpy(&header, content.data, sizeof header);
    char *text = strndup((char *)content.data + 8, header), *crc = (char *)content.data + 8;
    for (const char *at = text; (at = strstr(at, "\"crc64.")); at++)
        crc[at + 1 - text] = 'x'; /* a key that the library does not read */
    snprintf(key, sizeof key, "\"%s\":{", name);
    const char *entry = strstr(text, key), *offsets = entry ? strstr(entry, "\"data_offsets\":[") : NULL;
    ck_assert_msg(offsets != NULL, "there is no %s", name);
    memcpy(content.data + 8 + header + strtoull(offsets + strlen("\"data_offsets\":["), NULL, 10), &value, sizeof value);
    write_file(content, "%s/%s", run_folder, to);
    free(content.data);
    free(text);
}

/* lost.safetensors: a model whose logit of one class is -infinity. The loss of its images is infinite; the other images' losses
 * and gradients are as ever. Of the seed's batches those of the steps 5 and 9 have one such image each. */
static void make_files(void)
{
    make_run_folder();
    if (run("", FAULTS_RUN "--steps 2 --output base") != 0)
        fprintf(stderr, "the run failed: %s\n", text_of("log"));
    plant("base/model.safetensors", "lost.safetensors", "fc.bias", LOST_CLASS, 1, -3.4e38f);
    plant("lost.safetensors", "lost.safetensors", "fc.weight", LOST_CLASS * FEATURES, FEATURES, -3.4e38f);
}

/* ---- --non-finite ---- */

static const int lost_steps[] = {5, 9};

static const struct {
    int ranks;
    const char *options, *rank; /* "rank 1 (on 1 of 2 ranks)": of step 5 */
} stops[] = {
    {1, "", "rank 0 (on 1 of 1 ranks)"},
    {2, "", "rank 1 (on 1 of 2 ranks)"},
    {3, "--enable-zero-optim 2", "rank 2 (on 1 of 3 ranks)"},
    {2, "--enable-model-parallel", "rank 0 (on 2 of 2 ranks)"},     /* which have one loss */
    {2, "--head fused --accumulate 2", "rank 0 (on 1 of 2 ranks)"}, /* each micro-batch is split over the ranks */
    {1, "--save-async", "rank 0 (on 1 of 1 ranks)"},                /* the save of step 4 is in the background in step 5 */
    {2, "--save-async", "rank 1 (on 1 of 2 ranks)"},
};
enum { STOPS = sizeof stops / sizeof *stops };

START_TEST(test_stops)
{
    char options[512], expected[160];
    snprintf(options, sizeof options,
             FAULTS_RUN "--steps 10 -p 1 --save-every 1 --pretrained lost.safetensors --output stopped --overwrite %s",
             stops[_i].options);
    snprintf(expected, sizeof expected, "the loss of step %d is inf on %s: ", lost_steps[0], stops[_i].rank);
    check_refused_on(stops[_i].ranks, expected, options);
    ck_assert_msg(strstr(text_of("log"), "Epoch 0 [4/6]") && !strstr(text_of("log"), "Epoch 0 [5/6]"), "%s", text_of("log"));
    char path[128];
    shard_metadata *saved = NULL; /* the step before, not the model of the lost one */
    snprintf(path, sizeof path, "%s/stopped/checkpoint.safetensors", run_folder);
    shard_tensors_destroy(shard_inspect(path, &saved));
    ck_assert_str_eq(shard_metadata_get(saved, "step"), "4");
    shard_metadata_destroy(saved);
    printf("cases: 1\n");
}
END_TEST

static const struct {
    int ranks;
    const char *options;
    bool precise; /* in float32: the other steps' losses are those of one process */
} skips[] = {
    {1, "", true},
    {2, "--sync-bn", true},
    {2, "", false}, /* batch norms of each rank's images */
    {3, "--sync-bn --enable-zero-optim 3", true},
    {2, "--sync-bn --enable-model-parallel --clip-grad 100", true},
    {4, "--sync-bn --enable-model-parallel --model-parallel-size 2 --enable-zero-optim 1", true},
};
enum { SKIPS = sizeof skips / sizeof *skips };

/* Elements of the skipped run's checkpoint: counts of the batches that the running statistics and the optimizer have. */
static double saved_count(const char *name)
{
    char path[128];
    double count = -1;
    snprintf(path, sizeof path, "%s/skipped/checkpoint.safetensors", run_folder);
    SHARD_SCOPE
    {
        shard_tensors *file = shard_inspect(path, NULL);
        check_ok(shard_load(file, path));
        ck_assert_msg(shard_tensors_find(file, name) != NULL, "there is no %s", name);
        count = shard_item(shard_tensors_find(file, name));
        shard_tensors_destroy(file);
    }
    return count;
}

/* The steps are left out on all ranks, and leave nothing behind in the model: the last loss is that of one process. */
START_TEST(test_skips)
{
    line lines[MOST_LINES], single[MOST_LINES];
    drop_log();
    check_runs("", FAULTS_RUN "--steps 10 --pretrained lost.safetensors --non-finite skip --metrics single.json");
    drop_log();
    check_runs(shardrun(skips[_i].ranks),
               FAULTS_RUN
               "--steps 10 -p 1 --pretrained lost.safetensors --non-finite skip --check-replicas 1 --output skipped --overwrite "
               "--metrics skipped.json %s",
               skips[_i].options);
    ck_assert_int_eq(read_metrics("single.json", single), 10);
    ck_assert_int_eq(read_metrics("skipped.json", lines), 10);
    for (int i = 0; i < 10; i++) {
        bool lost = i + 1 == lost_steps[0] || i + 1 == lost_steps[1];
        ck_assert_msg(lines[i].left_out == lost, "step %d: left out %d", i + 1, lines[i].left_out);
        ck_assert_msg(lost || !skips[_i].precise || fabs(lines[i].loss - single[i].loss) < 1e-3, "step %d: loss %g, not %g",
                      i + 1, lines[i].loss, single[i].loss);
        ck_assert(lost || (lines[i].loss > 1 && lines[i].loss < 10));
    }
    ck_assert_double_eq(saved_count("bn1.num_batches_tracked"), 2 + 8); /* 2 of the run that made the file */
    ck_assert_double_eq(saved_count("optimizer.fc.weight.step"), 8);
    const char *log = text_of("log");
    ck_assert_msg(strstr(log, "2 steps were skipped") && strstr(log, "skipped: loss not finite on rank "), "%s", log);
    printf("cases: 1\n");
}
END_TEST

/* An infinite loss whose gradients are finite: the sum over two images or more of a class whose logit is near the lowest float32.
 * The rank that has them alone knows of it. */
START_TEST(test_skips_for_a_loss_alone)
{
    line lines[MOST_LINES];
    int left_out = 0;
    check_runs("", FAULTS_RUN "--num-classes 3 --steps 1 --output three");
    plant("three/model.safetensors", "three.safetensors", "fc.bias", 0, 1, -3.4e38f);
    drop_log();
    check_runs(shardrun(3), FAULTS_RUN "--num-classes 3 -b 6 --steps 10 -p 1 --pretrained three.safetensors --non-finite skip "
                                       "--metrics alone.json");
    ck_assert_int_eq(read_metrics("alone.json", lines), 10);
    for (int i = 0; i < 10; i++) {
        bool infinite = lines[i].loss == 0; /* null */
        ck_assert_msg(lines[i].left_out == infinite, "step %d: loss %g, left out %d", i + 1, lines[i].loss, lines[i].left_out);
        left_out += infinite;
    }
    ck_assert_msg(left_out > 0 && left_out < 10, "%d steps left out", left_out);
    ck_assert_ptr_null(strstr(text_of("log"), "skipped: gradients not finite"));
    printf("cases: 1\n");
}
END_TEST

/* Where all is finite, the option changes no bit. */
START_TEST(test_skip_changes_nothing)
{
    static const char *const ways[] = {"--sync-bn", "--enable-zero-optim 2 --optimizer adam", "--enable-model-parallel"};
    check_runs(shardrun(2), FAULTS_RUN "--steps 4 --output stop --overwrite %s", ways[_i]);
    check_runs(shardrun(2), FAULTS_RUN "--steps 4 --non-finite skip --output skip --overwrite %s", ways[_i]);
    char command[256];
    snprintf(command, sizeof command, "cmp %s/stop/checkpoint.safetensors %s/skip/checkpoint.safetensors >&2", run_folder,
             run_folder);
    ck_assert_msg(run_command(command) == 0, "the checkpoints differ");
    printf("cases: 1\n");
}
END_TEST

/* Gradients that are never finite end a run in float16, however small the scale becomes. */
START_TEST(test_least_scale)
{
    check_refused_on(1, "at a loss scale down to", FAULTS_RUN "--enable-amp-mode fp16 --lr 1e30 --epochs 9");
    printf("cases: 1\n");
}
END_TEST

/* ---- --check-replicas ---- */

static const struct {
    int ranks;
    const char *options;
} same[] = {
    {3, "--optimizer adam"},
    {2, "--sync-bn --enable-zero-optim 3"},
    {4, "--enable-model-parallel --model-parallel-size 2 --enable-zero-optim 2"},
    {2, "--enable-model-parallel --head-dtype bfloat16 --head-optimizer rowwise-adagrad --sample-rate 0.5"},
};
enum { SAMES = sizeof same / sizeof *same };

START_TEST(test_replicas_are_the_same)
{
    check_runs(shardrun(same[_i].ranks), FAULTS_RUN "--steps 3 --check-replicas 1 %s", same[_i].options);
    printf("cases: 1\n");
}
END_TEST

/* Rank 1 goes on from another file: one element of the optimizer's state. Its parameters are those of rank 0 in the step that
 * data parallel training compares them, so that nothing else finds it. */
START_TEST(test_replicas_that_differ)
{
    char launcher[512];
    plant_behind_checksums("base/checkpoint.safetensors", "rank0.safetensors", "optimizer.fc.weight.momentum_buffer", 1.0f);
    plant_behind_checksums("base/checkpoint.safetensors", "rank1.safetensors", "optimizer.fc.weight.momentum_buffer", 1.0625f);
    snprintf(launcher, sizeof launcher, "%s sh -c 'exec \"$@\" --resume rank$RANK.safetensors' sh", shardrun(2));
    drop_log();
    check_runs(launcher, FAULTS_RUN "--steps 4");
    drop_log();
    ck_assert(run(launcher, FAULTS_RUN "--steps 4 --check-replicas 2") != 0);
    const char *log = text_of("log");
    ck_assert_msg(
        strstr(log, "replicas differ after step 4") &&
            strstr(log, "shard_check_replicas: \"fc.weight\" float32 [101, 64]: the bits on rank 1 are not those on rank 0"),
        "%s", log);
    printf("cases: 2\n");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("imagenet faults");
    TCase *tcase = test_case(suite, "faults");
    tcase_set_timeout(tcase, 180);
    tcase_add_unchecked_fixture(tcase, make_files, drop_single);
    tcase_add_loop_test(tcase, test_stops, 0, STOPS);
    tcase_add_loop_test(tcase, test_skips, 0, SKIPS);
    tcase_add_test(tcase, test_skips_for_a_loss_alone);
    tcase_add_loop_test(tcase, test_skip_changes_nothing, 0, 3);
    tcase_add_test(tcase, test_least_scale);
    tcase_add_loop_test(tcase, test_replicas_are_the_same, 0, SAMES);
    tcase_add_test(tcase, test_replicas_that_differ);
    return test_run(suite);
}
