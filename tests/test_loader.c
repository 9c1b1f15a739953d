/* Batches: the same for any number of workers and ranks, from any step; damaged images; made-up ones. */
#include "support/pictures.h"
#include "support/ranks.h"

#include "loader.h"

#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CLASSES 5
#define IMAGES 23 /* of all classes */
#define SIZE 16
#define BYTES (SIZE * SIZE * 3)

static char root[64];
static image_folder *folder;

static void open_folder(void)
{
    char path[80];
    snprintf(path, sizeof path, "%s/train", root);
    folder = image_folder_open(path, NULL);
    ck_assert_msg(folder != NULL, "%s", shard_last_error());
}

static void set_up(void)
{
    make_folder(root);
    for (int i = 0; i < IMAGES; i++) {
        int height = 20 + i, width = 45 - i;
        uint8_t *pixels = smooth_picture(height, width, i);
        bytes content = jpeg_bytes(pixels, height, width, (jpeg_kind){.channels = 3});
        write_file(content, "%s/train/class%d/%02d.jpg", root, i % CLASSES, i);
        free(content.data);
        free(pixels);
    }
    open_folder();
}

static void tear_down(void)
{
    image_folder_close(folder);
    remove_folder(root);
}

static loader_options usual(void)
{
    return (loader_options){
        .device = shard_device_open("cpu"),
        .source = image_source_of_folder(folder),
        .batch = 6,
        .seed = 11,
        .training = true,
        .augment = {.crop_scale = 0.2, .flip = true},
        .image_size = SIZE,
        .ranks = 1,
        .workers = 2,
        .prefetch = 2,
    };
}

/* All samples of an epoch from a step on, put together. */
typedef struct epoch {
    uint8_t images[64][BYTES];
    int64_t labels[64], sizes[64], count, steps, bad;
} epoch;

static epoch *collect(loader *loading, int64_t number, int64_t first_step)
{
    epoch *all = calloc(1, sizeof *all);
    const loader_batch *batch;
    check_ok(loader_start(loading, number, first_step));
    for (;;) {
        check_ok(loader_next(loading, &batch));
        if (!batch)
            break;
        ck_assert_int_eq(batch->step, first_step + all->steps);
        memcpy(all->images[all->count], batch->images, (size_t)batch->size * sizeof *all->images);
        memcpy(all->labels + all->count, batch->labels, (size_t)batch->size * sizeof *all->labels);
        all->sizes[all->steps++] = batch->size;
        all->count += batch->size;
        all->bad += batch->bad;
    }
    ck_assert_int_eq(first_step + all->steps, loader_steps(loading));
    check_ok(loader_next(loading, &batch)); /* the end stays the end */
    ck_assert_ptr_null(batch);
    return all;
}

static epoch *collect_with(loader_options options, int64_t number, int64_t first_step)
{
    loader *loading = loader_open(&options);
    ck_assert_msg(loading != NULL, "%s", shard_last_error());
    epoch *all = collect(loading, number, first_step);
    loader_close(loading);
    return all;
}

static void check_same(const epoch *a, const epoch *b)
{
    ck_assert_int_eq(a->count, b->count);
    ck_assert_mem_eq(a->labels, b->labels, sizeof a->labels);
    ck_assert_mem_eq(a->images, b->images, sizeof a->images);
}

START_TEST(test_any_workers)
{
    loader_options options = usual();
    options.workers = 0;
    epoch *alone = collect_with(options, 3, 0);
    ck_assert_int_eq(alone->count, IMAGES);
    ck_assert_int_eq(alone->steps, 4);
    ck_assert_int_eq(alone->sizes[3], 5);
    for (options.workers = 1; options.workers <= 8; options.workers *= 2)
        for (options.prefetch = 0; options.prefetch < 7; options.prefetch += 3) {
            epoch *several = collect_with(options, 3, 0);
            check_same(alone, several);
            free(several);
        }
    free(alone);
}
END_TEST

/* A batch on the device, for which nobody waits. */
typedef struct copied {
    shard_tensor *images, *labels;
    int64_t size;
} copied;

static copied copy_batch(shard_device *device, const loader_batch *batch)
{
    copied copy = {.images = shard_from_host_async(batch->images, SHARD_SHAPE(batch->size, BYTES), .dtype = SHARD_UINT8, .device = device),
                   .labels = shard_from_host(batch->labels, SHARD_SHAPE(batch->size), .dtype = SHARD_INT64, .device = device),
                   .size = batch->size};
    check_ok(shard_event_record(batch->copied));
    return copy;
}

static int64_t check_copy(copied copy, const epoch *wanted, int64_t first)
{
    epoch *got = calloc(1, sizeof *got);
    check_ok(shard_copy_to_host(copy.images, got->images, (size_t)copy.size * sizeof *got->images));
    check_ok(shard_copy_to_host(copy.labels, got->labels, (size_t)copy.size * sizeof *got->labels));
    ck_assert_mem_eq(got->images, wanted->images[first], (size_t)copy.size * sizeof *got->images);
    ck_assert_mem_eq(got->labels, wanted->labels + first, (size_t)copy.size * sizeof *got->labels);
    free(got);
    return first + copy.size;
}

/* The slots are fewer than the steps, and the device copies when it likes: each slot is filled anew, or
 * freed, only when what was in it has been copied. */
START_TEST(test_waits_for_copies)
{
    enum { STEPS = 8 };
    loader_options options = usual();
    options.batch = 3;
    options.prefetch = 1;
    epoch *dropped = collect_with(options, 9, 0), *wanted = collect_with(options, 2, 0);
    ck_assert_int_eq(wanted->steps, STEPS);
    options.workers = _i;
    options.device = shard_device_open(NULL);
    loader *loading = loader_open(&options);
    ck_assert_msg(loading != NULL, "%s", shard_last_error());
    SHARD_SCOPE {
        const loader_batch *batch;
        copied copies[STEPS];
        check_ok(loader_start(loading, 9, 0));
        check_ok(loader_next(loading, &batch));
        copied first = copy_batch(options.device, batch);
        check_ok(loader_start(loading, 2, 0));
        usleep(20000); /* for workers to make what comes */
        for (int step = 0; step < STEPS; step++) {
            check_ok(loader_next(loading, &batch));
            ck_assert_ptr_nonnull(batch);
            copies[step] = copy_batch(options.device, batch);
        }
        loader_close(loading);
        check_copy(first, dropped, 0);
        int64_t position = 0;
        for (int step = 0; step < STEPS; step++)
            position = check_copy(copies[step], wanted, position);
        ck_assert_int_eq(position, IMAGES);
    }
    free(dropped), free(wanted);
}
END_TEST

START_TEST(test_any_ranks)
{
    loader_options options = usual();
    epoch *alone = collect_with(options, 1, 0);
    for (options.ranks = 2; options.ranks <= 8; options.ranks++) {
        epoch *parts[8], *together = calloc(1, sizeof *together);
        int64_t taken[8] = {0};
        for (options.rank = 0; options.rank < options.ranks; options.rank++) {
            parts[options.rank] = collect_with(options, 1, 0);
            ck_assert_int_eq(parts[options.rank]->steps, alone->steps);
        }
        for (int64_t step = 0; step < alone->steps; step++)
            for (int rank = 0; rank < options.ranks; rank++)
                for (int64_t i = 0; i < parts[rank]->sizes[step]; i++, taken[rank]++) {
                    together->labels[together->count] = parts[rank]->labels[taken[rank]];
                    memcpy(together->images[together->count++], parts[rank]->images[taken[rank]], sizeof *together->images);
                }
        check_same(alone, together);
        for (int rank = 0; rank < options.ranks; rank++)
            free(parts[rank]);
        free(together);
    }
    free(alone);
}
END_TEST

START_TEST(test_resumes_at_any_step)
{
    loader_options options = usual();
    loader *loading = loader_open(&options);
    epoch *whole = collect(loading, 2, 0), *other = collect(loading, 1, 0);
    ck_assert_mem_ne(whole->labels, other->labels, sizeof whole->labels);
    for (int64_t step = 1; step < 5; step++) {
        /* What was made ahead for another epoch must not show. */
        const loader_batch *batch;
        check_ok(loader_start(loading, 9, 0));
        if (step % 2)
            check_ok(loader_next(loading, &batch));
        epoch *rest = collect(loading, 2, step);
        int64_t skipped = whole->count - rest->count;
        ck_assert_int_eq(skipped, step < 4 ? step * 6 : IMAGES);
        ck_assert_mem_eq(rest->images, whole->images[skipped], (size_t)rest->count * sizeof *rest->images);
        free(rest);
    }
    loader_close(loading);
    free(whole);
    free(other);
}
END_TEST

/* Training pictures differ from epoch to epoch, validation's are the plain ones in order. */
START_TEST(test_augments)
{
    loader_options options = usual();
    options.training = false;
    epoch *plain = collect_with(options, 0, 0), *again = collect_with(options, 1, 0);
    check_same(plain, again);
    options.training = true;
    options.batch = IMAGES;
    epoch *training = collect_with(options, 0, 0);
    int64_t position = 0, per_class[CLASSES] = {0};
    for (int64_t i = 0; i < IMAGES; i++) {
        ck_assert_int_eq(plain->labels[i], image_folder_label(folder, i));
        per_class[training->labels[i]]++;
        for (int64_t k = 0; k < IMAGES; k++) /* whole pictures at random: none is as in validation */
            position += memcmp(plain->images[i], training->images[k], sizeof *plain->images) == 0;
    }
    ck_assert_int_eq(position, 0);
    for (int i = 0; i < CLASSES; i++)
        ck_assert_int_eq(per_class[i], IMAGES / CLASSES + (i < IMAGES % CLASSES));
    free(plain), free(again), free(training);
}
END_TEST

static void damage(int64_t which)
{
    char path[128];
    ck_assert(image_folder_path(folder, which, path, sizeof path));
    write_file((bytes){(uint8_t *)"\xff\xd8\xff broken", 10}, "%s", path);
}

/* A picture that takes long to decode. */
static void make_slow(int64_t which, bool truncated)
{
    char path[128];
    ck_assert(image_folder_path(folder, which, path, sizeof path));
    uint8_t *pixels = smooth_picture(1000, 1000, 1);
    bytes content = jpeg_bytes(pixels, 1000, 1000, (jpeg_kind){.channels = 3});
    write_file((bytes){content.data, content.size - (truncated ? 1000 : 0)}, "%s", path);
    free(content.data);
    free(pixels);
}

/* Samples that are being made when another epoch begins must not end up in it. */
START_TEST(test_restarts_while_busy)
{
    for (int64_t i = 0; i < IMAGES; i += 2)
        make_slow(i, false);
    loader_options options = usual();
    loader *loading = loader_open(&options);
    epoch *first = collect(loading, 0, 0);
    for (int i = 0; i < 10; i++) {
        check_ok(loader_start(loading, 1, 0));
        usleep(3000);
        epoch *again = collect(loading, 0, 0);
        check_same(first, again);
        free(again);
    }
    loader_close(loading);
    free(first);
}
END_TEST

/* The batch's first damaged image is named, also if another one is found before it. */
START_TEST(test_names_the_first_damaged)
{
    loader_options options = usual();
    options.training = false;
    make_slow(1, true);
    damage(4);
    loader *loading = loader_open(&options);
    const loader_batch *batch;
    check_ok(loader_start(loading, 0, 0));
    ck_assert_int_eq(loader_next(loading, &batch), SHARD_ERROR_FORMAT);
    check_error(SHARD_ERROR_FORMAT, "*/train/class0/05.jpg: *");
    loader_close(loading);
}
END_TEST

START_TEST(test_damaged_is_an_error)
{
    loader_options options = usual();
    options.training = false;
    options.workers = _i;
    damage(8);
    loader *loading = loader_open(&options);
    const loader_batch *batch;
    check_ok(loader_start(loading, 0, 0));
    check_ok(loader_next(loading, &batch));
    ck_assert_int_eq(batch->size, 6);
    for (int i = 0; i < 2; i++) { /* and stays one */
        ck_assert_int_eq(loader_next(loading, &batch), SHARD_ERROR_FORMAT);
        ck_assert_ptr_null(batch);
        check_error(SHARD_ERROR_FORMAT, "*/train/class1/16.jpg: *");
    }
    loader_close(loading);
}
END_TEST

/* Images 3 and 8 (in the first two batches) pass, their slots are marked, the rest is untouched. */
START_TEST(test_skips_damaged)
{
    loader_options options = usual();
    options.training = false;
    options.workers = _i;
    epoch *good = collect_with(options, 0, 0);
    uint8_t grey[BYTES]; /* as near to 0 as there is a level */
    for (int i = 0; i < BYTES; i++)
        grey[i] = (const uint8_t[]){124, 116, 104}[i % 3];
    damage(3);
    damage(8);
    options.skip_bad = 2;
    loader *loading = loader_open(&options);
    for (int64_t repeat = 0; repeat < 2; repeat++) { /* each epoch may have so many */
        epoch *skipped = collect(loading, repeat, 0);
        ck_assert_int_eq(skipped->bad, 2);
        for (int64_t i = 0; i < IMAGES; i++) {
            bool bad = i == 3 || i == 8;
            ck_assert_int_eq(skipped->labels[i], bad ? LOADER_IGNORED : good->labels[i]);
            ck_assert_mem_eq(skipped->images[i], bad ? grey : good->images[i], sizeof grey);
        }
        free(skipped);
    }
    loader_close(loading);

    options.skip_bad = 1;
    loading = loader_open(&options);
    const loader_batch *batch;
    check_ok(loader_start(loading, 0, 0));
    check_ok(loader_next(loading, &batch));
    ck_assert_int_eq(batch->bad, 1);
    ck_assert_int_eq(loader_next(loading, &batch), SHARD_ERROR_FORMAT);
    check_error(SHARD_ERROR_FORMAT, "*/train/class1/16.jpg: *");
    loader_close(loading);
    free(good);
}
END_TEST

START_TEST(test_missing_is_an_error)
{
    loader_options options = usual();
    char path[128];
    ck_assert(image_folder_path(folder, 0, path, sizeof path));
    ck_assert_int_eq(remove(path), 0);
    options.batch = IMAGES;
    loader *loading = loader_open(&options);
    const loader_batch *batch;
    check_ok(loader_start(loading, 0, 0));
    ck_assert_int_eq(loader_next(loading, &batch), SHARD_ERROR_IO);
    check_error(SHARD_ERROR_IO, "*/train/class0/00.jpg: No such file or directory");
    loader_close(loading);
}
END_TEST

/* 23 = 3 * 7 + 2: in the last batch five of seven ranks have nothing to do, but take the step. */
START_TEST(test_empty_parts)
{
    loader_options options = usual();
    options.batch = options.ranks = 7;
    options.rank = 6;
    options.workers = _i;
    epoch *last = collect_with(options, 0, 0);
    ck_assert_int_eq(last->steps, 4);
    ck_assert_int_eq(last->sizes[2], 1);
    ck_assert_int_eq(last->sizes[3], 0);
    options.ranks = 50;
    options.rank = 49;
    epoch *none = collect_with(options, 0, 0);
    ck_assert_int_eq(none->steps, 4);
    ck_assert_int_eq(none->count, 0);
    free(last);
    free(none);
}
END_TEST

START_TEST(test_made_up)
{
    loader_options options = usual();
    options.source = (image_source){0};
    options.made_up = (synthetic){.samples = 40, .num_classes = 3};
    options.batch = 9;
    options.training = false;
    epoch *training = collect_with(options, 0, 0);
    options.made_up.first = 40;
    epoch *validation = collect_with(options, 0, 0);
    ck_assert_int_eq(training->count, 40);
    /* The nearest training picture is of the same class: that can be learned. */
    double total = 0, squares = 0;
    for (int64_t i = 0; i < 40; i++) {
        ck_assert(validation->labels[i] >= 0 && validation->labels[i] < 3);
        double nearest = 1e30;
        int64_t label = -1;
        for (int64_t k = 0; k < 40; k++) {
            double distance = 0;
            for (int v = 0; v < BYTES; v++) {
                double difference = validation->images[i][v] - training->images[k][v];
                distance += difference * difference;
            }
            ck_assert_double_gt(distance, 0);
            if (distance < nearest) {
                nearest = distance;
                label = training->labels[k];
            }
        }
        ck_assert_int_eq(label, validation->labels[i]);
        for (int v = 0; v < BYTES; v++) {
            double value = (training->images[i][v] / 255.0 - image_mean[v % 3]) / image_deviation[v % 3];
            total += value;
            squares += value * value;
        }
    }
    ck_assert_double_eq_tol(total / (40 * BYTES), 0, 0.2);
    ck_assert_double_eq_tol(squares / (40 * BYTES), 1, 0.2);
    free(training);
    free(validation);
}
END_TEST

START_TEST(test_refuses_options)
{
    loader_options wrong[] = {usual(), usual(), usual(), usual(), usual(), usual(), usual()};
    wrong[0].batch = 0;
    wrong[1].image_size = 0;
    wrong[2].workers = -1;
    wrong[3].rank = 1;
    wrong[4].augment.crop_scale = 0;
    wrong[5].augment.shift = 0.5;
    wrong[6].source = (image_source){0}; /* and no classes */
    for (int i = 0; i < 7; i++) {
        ck_assert_ptr_null(loader_open(&wrong[i]));
        check_error(SHARD_ERROR_ARGUMENT, "loader: *");
    }
}
END_TEST

/* What is not in an epoch, as a file may say: the loader goes on as it was. */
START_TEST(test_refuses_a_step_that_is_not_there)
{
    static const int64_t wrong[][2] = {{0, -1}, {0, -5}, {0, 5}, {0, INT64_MAX}, {0, INT64_MIN}, {-1, 0}, {INT64_MIN, 2}};
    loader_options options = usual();
    options.workers = _i;
    loader *loading = loader_open(&options);
    epoch *whole = collect(loading, 2, 0);
    const loader_batch *batch;
    check_ok(loader_start(loading, 2, 0));
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        ck_assert_int_eq(loader_start(loading, wrong[i][0], wrong[i][1]), SHARD_ERROR_ARGUMENT);
        check_error(SHARD_ERROR_ARGUMENT, "*count from 0*");
    }
    check_ok(loader_next(loading, &batch));
    ck_assert_mem_eq(batch->images, whole->images[0], (size_t)batch->size * sizeof *whole->images);
    check_ok(loader_start(loading, 2, loader_steps(loading)));
    check_ok(loader_next(loading, &batch));
    ck_assert_ptr_null(batch);
    loader_close(loading);
    free(whole);
}
END_TEST

/* Which signals a thread blocks, from the kernel's list of it. */
static uint64_t blocked_by(const char *task)
{
    char path[300], text[256];
    snprintf(path, sizeof path, "/proc/self/task/%s/status", task);
    FILE *file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    uint64_t blocked = 0;
    while (fgets(text, sizeof text, file))
        if (strncmp(text, "SigBlk:", 7) == 0)
            blocked = strtoull(text + 7, NULL, 16);
    fclose(file);
    return blocked;
}

static bool has_signal(uint64_t set, int number)
{
    return set >> (number - 1) & 1;
}

/* Threads that block SIGTERM; *wrong: how many of them block a fault of their own, too. */
static int count_workers(int *wrong)
{
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    int workers = *wrong = 0;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *task; (task = readdir(tasks));) {
        uint64_t blocked = task->d_name[0] == '.' ? 0 : blocked_by(task->d_name);
        bool deaf = false;
        for (size_t i = 0; i < sizeof own / sizeof *own; i++)
            deaf |= has_signal(blocked, own[i]);
        workers += has_signal(blocked, SIGTERM);
        *wrong += deaf;
    }
    closedir(tasks);
    return workers;
}

static void *end_at_once(void *unused)
{
    return unused;
}

/* A worker hears of its own faults, and of nothing else: a SIGTERM goes to the main thread. While a thread
 * starts, it blocks all. */
START_TEST(test_signals_of_workers)
{
    loader_options options = usual();
    options.workers = 3;
    pthread_t first; /* a sanitizer starts its own with it */
    ck_assert_int_eq(pthread_create(&first, NULL, end_at_once, NULL), 0);
    pthread_join(first, NULL);
    int others_wrong, others = count_workers(&others_wrong);
    loader *loading = loader_open(&options);
    int workers, wrong;
    for (int tries = 0; tries < 1000 && (count_workers(&wrong) != 3 + others || wrong > others_wrong); tries++)
        usleep(2000);
    workers = count_workers(&wrong);
    ck_assert_int_eq(workers - others, 3);
    ck_assert_msg(wrong == others_wrong, "%d workers block what is their own fault", wrong - others_wrong);
    loader_close(loading);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("loader");
    TCase *tcase = test_case(suite, "loader");
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, test_any_workers);
    tcase_add_loop_test(tcase, test_waits_for_copies, 0, 3);
    tcase_add_test(tcase, test_any_ranks);
    tcase_add_test(tcase, test_resumes_at_any_step);
    tcase_add_test(tcase, test_augments);
    tcase_add_loop_test(tcase, test_damaged_is_an_error, 0, 3);
    tcase_add_test(tcase, test_restarts_while_busy);
    tcase_add_test(tcase, test_names_the_first_damaged);
    tcase_add_loop_test(tcase, test_skips_damaged, 0, 3);
    tcase_add_test(tcase, test_missing_is_an_error);
    tcase_add_loop_test(tcase, test_refuses_a_step_that_is_not_there, 0, 2);
    tcase_add_test(tcase, test_signals_of_workers);
    tcase_add_loop_test(tcase, test_empty_parts, 0, 3);
    tcase_add_test(tcase, test_made_up);
    tcase_add_test(tcase, test_refuses_options);
    return test_run(suite);
}
