/* Mistakes of callers and of environments that are no NULL (test_null_arguments): each is a clear
 * error, or does no harm. */
#include "support/ranks.h"

#include "tensor/tensor.h"

#include <shard/shard.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- lists ---- */

static shard_tensors *list_of(const char *const *names, int count)
{
    shard_tensors *list = shard_tensors_create();
    for (int i = 0; i < count; i++) {
        shard_tensor *x = shard_full(SHARD_SHAPE(1), i);
        check_ok(shard_tensors_add(list, names[i], x));
        shard_release(x);
    }
    return list;
}
#define list(...) list_of((const char *const[]){__VA_ARGS__}, (int)(sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *)))

static void check_names(const shard_tensors *list, const char *expected)
{
    char names[200] = "";
    for (int64_t i = 0; i < shard_tensors_count(list); i++)
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", i ? " " : "", shard_tensors_name(list, i));
    ck_assert_str_eq(names, expected);
}

START_TEST(test_extend_by_itself)
{
    shard_tensors *l = list("a", "b");
    check_ok(shard_tensors_extend(l, "x.", l));
    check_names(l, "a b x.a x.b");
    ck_assert_ptr_eq(shard_tensors_find(l, "x.b"), shard_tensors_find(l, "b"));
    shard_tensors_extend(l, "", l);
    check_error(SHARD_ERROR_ARGUMENT, "*tensor \"a\" already*");
    check_names(l, "a b x.a x.b");
    shard_tensors_destroy(l);
}
END_TEST

START_TEST(test_extend_or_nothing)
{
    shard_tensors *l = list("a", "x.c"), *from = list("b", "c", "d");
    shard_tensors_extend(l, "x.", from);
    check_error(SHARD_ERROR_ARGUMENT, "*tensor \"x.c\" already*");
    check_names(l, "a x.c");
    ck_assert_ptr_null(shard_tensors_find(l, "x.b"));
    shard_tensors_destroy(from);
    shard_tensors_destroy(l);
}
END_TEST

START_TEST(test_subset)
{
    shard_tensors *l = list("model.a", "modelb", "model.", "other.a"), *model = shard_tensors_subset(l, "model."),
                  *all = shard_tensors_subset(l, ""), *none = shard_tensors_subset(l, "z");
    check_names(model, "a ");
    check_names(all, "model.a modelb model. other.a");
    check_names(none, "");
    ck_assert_ptr_eq(shard_tensors_find(model, "a"), shard_tensors_find(l, "model.a"));
    shard_tensors_destroy(l);
    ck_assert(shard_item(shard_tensors_at(model, 1)) == 2);
    shard_tensors_destroy(model);
    shard_tensors_destroy(all);
    shard_tensors_destroy(none);
}
END_TEST

/* Each name leads to its tensor. */
static void check_found(const shard_tensors *l)
{
    for (int64_t i = 0; i < shard_tensors_count(l); i++)
        ck_assert_ptr_eq(shard_tensors_find(l, shard_tensors_name(l, i)), shard_tensors_at(l, i));
}

/* Many names, so that some meet in one slot of the table over them. */
START_TEST(test_rename_and_remove)
{
    shard_tensors *l = list("a", "b", "c");
    check_ok(shard_tensors_rename(l, "b", "x"));
    check_ok(shard_tensors_rename(l, "x", "x"));
    check_names(l, "a x c");
    ck_assert(shard_item(shard_tensors_find(l, "x")) == 1 && !shard_tensors_find(l, "b"));
    shard_tensors_rename(l, "a", "c");
    check_error(SHARD_ERROR_ARGUMENT, "shard_tensors_rename: \"a\"*");
    shard_tensors_rename(l, "b", "d");
    check_error(SHARD_ERROR_ARGUMENT, "shard_tensors_rename: *\"b\"*");
    check_ok(shard_tensors_remove(l, shard_tensors_name(l, 0)));
    check_names(l, "x c");
    shard_tensors_remove(l, "a");
    check_error(SHARD_ERROR_ARGUMENT, "shard_tensors_remove: *\"a\"*");
    char name[16], other[16];
    shard_tensor *one = shard_ones(SHARD_SHAPE(1));
    for (int i = 0; i < 200; i++) {
        snprintf(name, sizeof name, "n%d", i);
        shard_tensor *own = shard_zeros(SHARD_SHAPE(1));
        check_ok(shard_tensors_add(l, name, own));
        shard_release(own);
    }
    for (int i = 0; i < 200; i++) {
        snprintf(name, sizeof name, "n%d", i);
        snprintf(other, sizeof other, "m%d", i);
        check_ok(i % 2 ? shard_tensors_remove(l, name) : shard_tensors_rename(l, name, other));
        ck_assert(!shard_tensors_find(l, name) && (shard_tensors_find(l, other) == NULL) == i % 2);
        check_found(l);
    }
    ck_assert_int_eq(shard_tensors_count(l), 102);
    ck_assert_str_eq(shard_tensors_name(l, 101), "m198");
    check_ok(shard_tensors_add(l, "a", one));
    ck_assert_ptr_eq(shard_tensors_find(l, "a"), shard_tensors_at(l, 102));
    shard_tensors_truncate(l, 50);
    ck_assert_int_eq(shard_tensors_count(l), 50);
    ck_assert(!shard_tensors_find(l, "a") && !shard_tensors_find(l, "m198"));
    check_found(l);
    shard_release(one);
    shard_tensors_destroy(l);
    l = shard_tensors_create();
    shard_tensors_remove(l, "a");
    check_error(SHARD_ERROR_ARGUMENT, "shard_tensors_remove: *\"a\"*");
    shard_tensors_destroy(l);
}
END_TEST

/* ---- samplers ---- */

START_TEST(test_sampler_sizes)
{
    int64_t most = INT64_MAX;
    ck_assert_ptr_null(shard_group_sampler_create(most - 1, .ranks = 1000, .batch = 1000));
    check_error(SHARD_ERROR_ARGUMENT, "shard_group_sampler_create: *SHARD_LAST_BATCH_PAD*overflow*");
    shard_group_sampler *sampler =
        shard_group_sampler_create(most - 1, .ranks = 1000, .batch = 1000, .last_batch = SHARD_LAST_BATCH_EXACT);
    ck_assert_int_eq(shard_group_sampler_steps(sampler), most / 1000 + 1);
    shard_range last = shard_group_sampler_local_range(sampler, most / 1000);
    ck_assert(last.start == most / 1000 * 1000 && last.size == 1);
    shard_range none = shard_group_sampler_local_range(sampler, most / 1000 + 1);
    ck_assert(none.start == 0 && none.size == 0);
    check_error(SHARD_ERROR_ARGUMENT, "shard_group_sampler_local_range: step 9223372036854776*");
    shard_group_sampler_local_range(sampler, -1);
    check_error(SHARD_ERROR_ARGUMENT, "shard_group_sampler_local_range: step -1 of *");
    ck_assert_int_eq(shard_group_sampler_sample_at(sampler, 0, -1), -1);
    check_error(SHARD_ERROR_ARGUMENT, "shard_group_sampler_sample_at: position -1 of epoch 0 *");
    ck_assert_int_eq(shard_group_sampler_sample_at(sampler, -1, 0), -1);
    check_error(SHARD_ERROR_ARGUMENT, "shard_group_sampler_sample_at: position 0 of epoch -1 *");
    shard_group_sampler_destroy(sampler);
    sampler = shard_group_sampler_create(0);
    ck_assert_int_eq(shard_group_sampler_sample_at(sampler, 0, 0), -1);
    check_error(SHARD_ERROR_ARGUMENT, "shard_group_sampler_sample_at: * of 0 samples*");
    int64_t samples[4], count = 7;
    ck_assert(!shard_group_sampler_next(NULL, samples, &count) && count == 0);
    check_error(SHARD_ERROR_ARGUMENT, "shard_group_sampler_next: sampler *");
    shard_group_sampler_destroy(sampler);
}
END_TEST

/* The number of draws goes round. */
START_TEST(test_draws)
{
    shard_set_random_state((shard_random_state){.seed = -1, .next_draw = INT64_MAX});
    SHARD_SCOPE
    ck_assert(shard_item(shard_uniform(SHARD_SHAPE(1), 1.0, 2.0)) >= 1);
    ck_assert_int_eq(shard_get_random_state().next_draw, INT64_MIN);
}
END_TEST

/* An error names the function that the caller wrote. */
START_TEST(test_from_host)
{
    ck_assert_ptr_null(shard_from_host(NULL, SHARD_SHAPE(3)));
    check_error(SHARD_ERROR_ARGUMENT, "shard_from_host: data *");
    SHARD_SCOPE
    ck_assert_int_eq(shard_numel(shard_from_host(NULL, SHARD_SHAPE(0, 3))), 0);
}
END_TEST

/* ---- the job ---- */

START_TEST(test_job_once)
{
    check_ok(shard_init(NULL, NULL));
    shard_init(NULL, NULL);
    check_error(SHARD_ERROR_ARGUMENT, "shard_init: *twice*");
    shard_group *kept = shard_world();
    ck_assert_ptr_nonnull(kept);
    ck_assert_int_eq(shard_finalize(), 0);
    ck_assert_ptr_null(shard_world());
    ck_assert_int_eq(shard_group_size(kept), 1);
    ck_assert_int_eq(shard_group_rank(kept) + shard_group_world_rank(kept, 0), 0);
    ck_assert_str_eq(shard_group_transport(kept), "self");
    check_ok(shard_barrier(kept));
    ck_assert_int_eq(shard_group_size(shard_world()), 1);
    check_ok(shard_barrier(shard_world()));
    ck_assert_int_eq(shard_finalize(), 0);
    shard_init(NULL, NULL);
    check_error(SHARD_ERROR_ARGUMENT, "shard_init: *shard_finalize*");
    SHARD_SCOPE
    ck_assert(shard_item(shard_sum(shard_ones(SHARD_SHAPE(3)))) == 3);
}
END_TEST

/* Of several ranks, each has itself alone after the end. */
static void keeps_world(shard_group *world, void *context)
{
    (void)world;
    (void)context;
    check_ok(shard_init(NULL, NULL));
    shard_group *kept = shard_world();
    ck_assert_int_eq(shard_group_size(kept), 2);
    ck_assert_int_eq(shard_finalize(), 0);
    ck_assert_int_eq(shard_group_size(kept), 1);
    ck_assert_int_eq(shard_group_rank(kept), 0);
    check_ok(shard_agree(kept));
    shard_group_destroy(kept);
    check_error(SHARD_ERROR_ARGUMENT, "shard_group_destroy: the group is the world*");
    SHARD_SCOPE
    {
        shard_tensor *x = shard_ones(SHARD_SHAPE(3));
        check_ok(shard_all_reduce(x, SHARD_SUM, kept));
        ck_assert(shard_item(shard_sum(x)) == 3);
    }
}

START_TEST(test_world_kept)
{
    run_ranks(2, keeps_world, .bare = true);
}
END_TEST

static const struct {
    const char *name, *value, *error;
    shard_status status; /* 0: ARGUMENT */
} variables[] = {
    {"WORLD_SIZE", "abc", "environment variable WORLD_SIZE is \"abc\", not a whole number in *"},
    {"WORLD_SIZE", "-3", "environment variable WORLD_SIZE is \"-3\", *"},
    {"WORLD_SIZE", "2", "WORLD_SIZE says that 2 ranks were started, but nothing connects them *shard_init_with",
     SHARD_ERROR_UNAVAILABLE},
    {"SHARD_TF32", "maybe", "environment variable SHARD_TF32 is \"maybe\", not a whole number in [[]0, 1]"},
    {"SHARD_MPI_COUNT", "0", "environment variable SHARD_MPI_COUNT is \"0\", not a whole number in [[]1, 1073741824]"},
    {"SHARD_PLUGIN_PATH", "/usr/lib:build", "SHARD_PLUGIN_PATH has the folder build, which is not absolute*"},
    {"SHARD_NCCL", "2", "environment variable SHARD_NCCL is \"2\", not a whole number in [[]0, 1]"},
    {"SHARD_DEVICE", "gpu", "SHARD_DEVICE is \"gpu\"; the devices are cpu, cuda and cuda:N"},
    {"SHARD_DEVICE", "cuda:x", "SHARD_DEVICE is \"cuda:x\"; *"},
    {"SHARD_TIMEOUT", "1h", "environment variable SHARD_TIMEOUT is \"1h\", *"},
    {"SHARD_TRANSPORT", "tcp", "SHARD_TRANSPORT is \"tcp\"; *"},
};

START_TEST(test_variables)
{
    setenv(variables[_i].name, variables[_i].value, 1);
    ck_assert_int_ne(shard_init(NULL, NULL), SHARD_OK);
    check_error(variables[_i].status ? variables[_i].status : SHARD_ERROR_ARGUMENT, variables[_i].error);
    unsetenv(variables[_i].name);
    check_ok(shard_init(NULL, NULL)); /* an attempt that failed is none */
    ck_assert_int_eq(shard_finalize(), 0);
}
END_TEST

/* A level that there is not is warned of once, at the latest when the job begins. */
START_TEST(test_log_level)
{
    char text[1000] = "";
    FILE *file = tmpfile();
    int kept = dup(STDERR_FILENO);
    ck_assert(file && dup2(fileno(file), STDERR_FILENO) >= 0);
    setenv("SHARD_LOG", "evil", 1);
    shard_status status = shard_init(NULL, NULL);
    shard_error(SHARD_ERROR_IO, "of the test");
    shard_finalize(); /* logs the error */
    dup2(kept, STDERR_FILENO);
    rewind(file);
    size_t used = fread(text, 1, sizeof text - 1, file);
    ck_assert_int_eq(status, SHARD_OK);
    ck_assert_uint_gt(used, 0);
    check_error(SHARD_ERROR_IO, "of the test");
    ck_assert_str_eq(text, "shard warn: SHARD_LOG is \"evil\"; the levels are error, warn, info and debug: warn is taken\n"
                           "shard error: of the test\n");
    fclose(file);
    close(kept);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("misuse");
    TCase *tcase = test_case(suite, "misuse");
    tcase_add_test(tcase, test_extend_by_itself);
    tcase_add_test(tcase, test_extend_or_nothing);
    tcase_add_test(tcase, test_subset);
    tcase_add_test(tcase, test_rename_and_remove);
    tcase_add_test(tcase, test_sampler_sizes);
    tcase_add_test(tcase, test_draws);
    tcase_add_test(tcase, test_from_host);
    tcase_add_test(tcase, test_job_once);
    tcase_add_test(tcase, test_world_kept);
    tcase_add_loop_test(tcase, test_variables, 0, (int)(sizeof variables / sizeof *variables));
    tcase_add_test(tcase, test_log_level);
    return test_run(suite);
}
