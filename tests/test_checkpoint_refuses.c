/* Saves and loads that cannot be done, without a fault of the system: paths, links, limits and permissions of
 * files, lists and files that differ between ranks, earlier errors. All ranks have the error. */
#include "support/scratch.h"
#include "support/state.h"

#include "tensor/tensor.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static void places(shard_group *world, void *context)
{
    const char *directory = context;
    shard_tensors *list = make_state(world, 1);
    char path[700];
    snprintf(path, sizeof path, "%s/absent/x.safetensors", directory);
    shard_save(list, path, NULL);
    check_joint_error(SHARD_ERROR_IO, "*cannot create */absent/x.safetensors.tmp.*: No such file or directory");
    shard_save(list, directory, NULL);
    check_joint_error(SHARD_ERROR_IO, "*cannot write */.: it is there already and is not a regular file");
    shard_save(list, "/dev/null", NULL);
    check_joint_error(SHARD_ERROR_IO, "*cannot write /dev/null: it is there already and is not a regular file");
    shard_save(list, "/proc/x.safetensors", NULL);
    check_joint_error(SHARD_ERROR_IO, "*cannot create /proc/x.safetensors.tmp.*: *");
    shard_save(list, NULL, NULL);
    check_error(SHARD_ERROR_ARGUMENT, "*shard_save: path is NULL");
    shard_save(list, "", NULL);
    check_error(SHARD_ERROR_ARGUMENT, "*shard_save: path is empty*");
    shard_save(list, "", NULL, .local = true);
    check_error(SHARD_ERROR_ARGUMENT, "*shard_save: path is empty*");
    shard_save_checkpoint(list, "", 1, NULL);
    check_error(SHARD_ERROR_ARGUMENT, "*shard_save_checkpoint: directory is empty*");
    shard_save(NULL, "/nowhere", NULL);
    check_error(SHARD_ERROR_ARGUMENT, "*shard_save: tensors is NULL");
    ck_assert_int_eq(scratch_count(".tmp"), 0);
    shard_tensors_destroy(list);
}

START_TEST(test_places)
{
    run_job(_i, places, (void *)scratch_path("."));
}
END_TEST

/* A link stays, and what it leads to, by other links, is written: also where nothing is yet. */
static void links(shard_group *world, void *context)
{
    const char *directory = context;
    char link[2][700], far[700], file[720];
    shard_tensors *list = make_state(world, 1);
    snprintf(link[0], sizeof link[0], "%s/link0", directory);
    snprintf(link[1], sizeof link[1], "%s/link1", directory);
    snprintf(far, sizeof far, "%s/far", directory);
    snprintf(file, sizeof file, "%s/file", far);
    if (shard_group_rank(world) == 0) {
        ck_assert_int_eq(mkdir(far, 0700), 0);
        ck_assert_int_eq(symlink("link1", link[0]), 0);
        ck_assert_int_eq(symlink("far/file", link[1]), 0);
    }
    check_ok(shard_barrier(world));
    for (int time = 0; time < 2; time++) {
        check_ok(shard_save(list, link[0], NULL));
        for (int i = 0; i < 2; i++) {
            struct stat status;
            ck_assert_int_eq(lstat(link[i], &status), 0);
            ck_assert(S_ISLNK(status.st_mode));
            check_content(world, link[i], 1);
        }
        check_content(world, file, 1);
    }
    check_ok(shard_barrier(world));
    if (shard_group_rank(world) == 0) {
        ck_assert_int_eq(unlink(file), 0);
        ck_assert_int_eq(rmdir(far), 0);
        ck_assert_int_eq(unlink(link[1]), 0);
        ck_assert_int_eq(symlink("link0", link[1]), 0);
    }
    check_ok(shard_barrier(world));
    shard_save(list, link[0], NULL);
    check_error(SHARD_ERROR_IO, "rank 0: cannot write */link0: Too many levels of symbolic links");
    if (shard_group_rank(world) == 0) {
        ck_assert_int_eq(unlink(link[0]), 0);
        ck_assert_int_eq(unlink(link[1]), 0);
    }
    shard_tensors_destroy(list);
}

START_TEST(test_links)
{
    run_job(2, links, (void *)scratch_path("."));
}
END_TEST

/* The temporary name has to fit, too. */
START_TEST(test_long_names)
{
    char path[1000];
    shard_tensors *list = make_small_state(NULL, 1);
    for (int bytes = 233; bytes <= 235; bytes++) {
        snprintf(path, sizeof path, "%s/%0*d", scratch_path("."), bytes, 0);
        shard_status status = shard_save(list, path, NULL, .local = true);
        check_error(status, bytes <= 234 ? "" : "cannot create *: File name too long");
        ck_assert_int_eq(unlink(path), bytes <= 234 ? 0 : -1);
    }
    shard_tensors_destroy(list);
}
END_TEST

/* Links in a directory that all may write to: those of other users are not followed. */
static void foreign_links(shard_group *world, void *context)
{
    const char *directory = context;
    char shared[700], link[720], file[720];
    const uid_t other = 65534;
    shard_tensors *list = make_state(world, 1);
    snprintf(shared, sizeof shared, "%s/shared", directory);
    snprintf(link, sizeof link, "%s/link", shared);
    snprintf(file, sizeof file, "%s/victim", directory);
    write_file(file, "old", 3);
    ck_assert_int_eq(mkdir(shared, 0700), 0);
    ck_assert_int_eq(symlink("../victim", link), 0);
    for (int i = 0; i < 5; i++) {
        bool sticky = i != 1, own = i == 0, owned_with_it = i == 2, for_all = i != 3;
        ck_assert_int_eq(chmod(shared, (sticky ? 01000 : 0) | (for_all ? 0777 : 0755)), 0);
        if (geteuid() == 0)
            ck_assert(lchown(link, own ? 0 : other, 0) == 0 && lchown(shared, owned_with_it ? other : 0, 0) == 0);
        bool refused = geteuid() == 0 && i == 4;
        shard_status status = shard_save(list, link, NULL);
        if (refused)
            check_error(SHARD_ERROR_IO, "cannot write */link: */link is a link that another user has made in a directory *");
        else
            check_ok(status);
        size_t bytes;
        free(read_file(file, &bytes));
        ck_assert_int_eq(bytes == 3, refused);
        write_file(file, "old", 3);
    }
    ck_assert(unlink(link) == 0 && rmdir(shared) == 0 && unlink(file) == 0);
    shard_tensors_destroy(list);
}

START_TEST(test_foreign_links)
{
    run_job(1, foreign_links, (void *)scratch_path("."));
}
END_TEST

/* The limit of ulimit -f on one rank is an error on all, and no signal. */
static void file_limit(shard_group *world, void *context)
{
    const char *path = context;
    shard_tensors *list = make_state(world, 1), *again = make_state(world, 2);
    struct rlimit before, low;
    sigset_t set;
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &before), 0);
    low = before;
    low.rlim_cur = 100;
    for (int rank = 0; rank < shard_group_size(world); rank++) {
        if (rank == shard_group_rank(world))
            ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &low), 0);
        ck_assert_int_ne(shard_save(list, path, NULL), SHARD_OK);
        check_joint_error(SHARD_ERROR_IO, "*cannot * *.safetensors.tmp.*: File too large; see ulimit -f*");
        ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &before), 0);
        ck_assert_int_eq(pthread_sigmask(SIG_SETMASK, NULL, &set), 0);
        ck_assert_int_eq(sigismember(&set, SIGXFSZ), 0);
    }
    check_ok(shard_barrier(world));
    ck_assert_int_eq(scratch_count(".tmp"), 0);
    check_ok(shard_save(list, path, NULL));
    check_ok(shard_load(again, path));
    check_state(again, 1);
    shard_tensors_destroy(list);
    shard_tensors_destroy(again);
}

START_TEST(test_file_limit)
{
    run_job(2, file_limit, (void *)scratch_path("limit.safetensors"));
}
END_TEST

/* A new file has what the mask leaves, another one those of the file that it replaces. */
static void permissions(shard_group *world, void *context)
{
    const char *path = context;
    const mode_t modes[] = {0640, 0600, 0444, 0, 0666};
    struct stat status;
    shard_tensors *list = make_state(world, 1);
    umask(027);
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        if (i > 0 && shard_group_rank(world) == 0)
            ck_assert_int_eq(chmod(path, modes[i]), 0);
        check_ok(shard_barrier(world));
        check_ok(shard_save(list, path, NULL));
        ck_assert_int_eq(stat(path, &status), 0);
        ck_assert_int_eq(status.st_mode & 07777, modes[i]);
        check_ok(shard_barrier(world));
    }
    shard_tensors_destroy(list);
}

START_TEST(test_permissions)
{
    run_job(2, permissions, (void *)scratch_path("permissions.safetensors"));
}
END_TEST

static void differing(shard_group *world, void *context)
{
#define FOLDER "/a folder with a long name"
#define LONG FOLDER FOLDER FOLDER FOLDER FOLDER FOLDER
    const char *path = context, *other = "other.safetensors", *far[] = {LONG "/é 0", LONG "/é 1"};
#undef LONG
#undef FOLDER
    bool odd = shard_group_rank(world) == 1;
    for (int i = 0; i < 9; i++)
        SHARD_SCOPE
        {
            static const char *const patterns[] = {
                ("rank 1: shard_save: the arguments differ between ranks: here it is \"b1\" *, on ranks 0 and 2 \"b\" float32 "
                 "[[]3] "
                 "local"),
                "*rank 1: *here it is \"b\" float32 [[]4] local, on ranks 0 and 2 \"b\" float32 [[]3] local",
                "*rank 1: *here it is \"b\" float64 [[]3] local, on ranks 0 and 2 \"b\" float32 [[]3] local",
                "*rank 1: *here it is nothing more, on ranks 0 and 2 \"b\" float32 [[]3] local",
                "*rank 1: *here it is \"other.safetensors\", on ranks 0 and 2 \"*",
                "*rank 1: *here it is \"b\" float32 [[]6] split along 0, on ranks 0 and 2 \"b\" float32 [[]6] local",
                "*rank 1: shard_save: \"b\" is partial*",
                "*\"b\": its local shards do not cover the whole of 9: rank 1 has 3 from 4 on, where 3 are covered so far",
                "*rank 1: *here it is ...* name/é 1\", on ranks 0 and 2 ...* name/é 0\"",
            };
            shard_tensors *list = shard_tensors_create();
            shard_tensor *b = shard_full(odd && i == 1 ? SHARD_SHAPE(4) : SHARD_SHAPE(i == 5 && !odd ? 6 : 3), 1,
                                         .dtype = odd && i == 2 ? SHARD_FLOAT64 : SHARD_FLOAT32);
            if (odd && i == 5)
                b = shard_as_split(b, 0, world, 3, 6);
            if (i == 6 && odd)
                b->placement = (shard_placement){.kind = SHARD_PARTIAL, .group = world};
            if (i == 7)
                b = shard_as_split(b, 0, world, 3 * shard_group_rank(world) + odd, 9);
            check_ok(shard_tensors_add(list, "a", shard_zeros(SHARD_SHAPE(2))));
            if (!odd || i != 3)
                check_ok(shard_tensors_add(list, odd && i == 0 ? "b1" : "b", b));
            ck_assert_int_ne(shard_save(list, i == 8 ? far[odd] : odd && i == 4 ? other : path, NULL), SHARD_OK);
            if (i == 7) /* all ranks see it */
                check_error(SHARD_ERROR_SHAPE, patterns[i]);
            else
                check_joint_error(i == 6 ? SHARD_ERROR_SHAPE : SHARD_ERROR_MISMATCH, patterns[i]);
            shard_tensors_destroy(list);
        }
    ck_assert_int_eq(scratch_count("differing"), 0);
}

/* ZeRO partitions a summand over the summand's replicas: its flat ranges are of one summand, not of the sum. */
static void partial(shard_group *world, void *context)
{
    (void)world;
    int stage = *(int *)context;
    shard_mesh *mesh = shard_mesh_create(.model = 2);
    SHARD_SCOPE
    {
        shard_placement placement = {.kind = SHARD_PARTIAL, .group = shard_mesh_model_group(mesh)};
        shard_tensor *p = shard_as_placed(shard_ones(SHARD_SHAPE(9)), placement);
        shard_set_requires_grad(p, true);
        shard_tensor_set_replica_group(p, shard_mesh_data_group(mesh));
        shard_tensors *list = shard_tensors_create();
        check_ok(shard_tensors_add(list, "p", p));
        shard_data_parallel *dp = shard_data_parallel_create(list, .stage = stage);
        ck_assert_msg(dp != NULL, "%s", shard_last_error());
        check_fails(shard_save(list, scratch_path("partial.safetensors"), NULL), SHARD_ERROR_SHAPE,
                    "*shard_save: \"p\" is partial*");
        shard_data_parallel_destroy(dp);
        shard_tensors_destroy(list);
    }
    shard_mesh_destroy(mesh);
}

START_TEST(test_partial)
{
    run_job(4, partial, &_i);
}
END_TEST

START_TEST(test_differing)
{
    run_job(3, differing, (void *)scratch_path("differing.safetensors"));
}
END_TEST

/* An error that a rank has already is everybody's, and nothing is written or read. */
static void earlier_errors(shard_group *world, void *context)
{
    const char *path = context;
    shard_tensors *list = make_state(world, 1), *none = shard_tensors_create();
    if (shard_group_rank(world) == 0)
        write_file(path, "\2\0\0\0\0\0\0\0{}", 10);
    for (int i = 0; i < 3; i++) {
        if (shard_group_rank(world) == 1)
            shard_error(SHARD_ERROR_ARGUMENT, "it had gone wrong before");
        if (i == 0)
            ck_assert_int_ne(shard_save(list, path, NULL), SHARD_OK);
        else if (i == 1)
            ck_assert_int_ne(shard_load(none, path), SHARD_OK);
        else
            ck_assert_ptr_null(shard_collect_state_dict(list, -1));
        check_joint_error(SHARD_ERROR_ARGUMENT, "rank 1: it had gone wrong before");
    }
    check_ok(shard_load(none, path)); /* still what it was */
    shard_tensors_destroy(none);
    shard_tensors_destroy(list);
}

START_TEST(test_earlier_errors)
{
    run_job(3, earlier_errors, (void *)scratch_path("earlier.safetensors"));
}
END_TEST

/* Ranks that see different files of one name. */
static void two_files(shard_group *world, void *context)
{
    const char *directory = context;
    char own[700];
    shard_tensors *list = make_state(NULL, 1);
    snprintf(own, sizeof own, "%s/rank%d", directory, shard_group_rank(world));
    ck_assert_int_eq(mkdir(own, 0700), 0);
    ck_assert_int_eq(chdir(own), 0);
    shard_save(list, "x.safetensors", NULL);
    check_joint_error(SHARD_ERROR_IO,
                      "rank 1: cannot open x.safetensors.tmp.*, which the first rank has made: No such file*; ranks on "
                      "several hosts need a file system that they share");
    write_file("x.safetensors", shard_group_rank(world) ? "\2\0\0\0\0\0\0\0{}" : "\3\0\0\0\0\0\0\0{} ",
               shard_group_rank(world) ? 10 : 11);
    shard_tensors *none = shard_tensors_create();
    shard_load(none, "x.safetensors");
    check_error(SHARD_ERROR_MISMATCH, "shard_load: x.safetensors *rank 1*");
    ck_assert_int_eq(unlink("x.safetensors"), 0);
    ck_assert_int_eq(chdir("/"), 0);
    ck_assert_int_eq(rmdir(own), 0);
    shard_tensors_destroy(none);
    shard_tensors_destroy(list);
}

START_TEST(test_two_files)
{
    run_job(2, two_files, (void *)scratch_path("."));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("checkpoint_refuses");
    TCase *tcase = test_case(suite, "checkpoint_refuses");
    tcase_add_loop_test(tcase, test_places, 1, 3);
    tcase_add_test(tcase, test_links);
    tcase_add_test(tcase, test_long_names);
    tcase_add_test(tcase, test_foreign_links);
    tcase_add_test(tcase, test_file_limit);
    tcase_add_test(tcase, test_permissions);
    tcase_add_test(tcase, test_differing);
    tcase_add_loop_test(tcase, test_partial, 0, 4);
    tcase_add_test(tcase, test_earlier_errors);
    tcase_add_test(tcase, test_two_files);
    scratch_open();
    int failed = test_run(suite);
    scratch_close();
    return failed;
}
