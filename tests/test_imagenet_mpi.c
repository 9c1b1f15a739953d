/* projects/imagenet under the mpirun that MPIRUN names: the losses of the single process, and of ranks over shared memory. */
#include "support/trainer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    int ranks;
    const char *options;
} settings[] = {{2, "--model-parallel-dim column"},
                {3, "--model-parallel-dim row"},
                {4, "--model-parallel-dim column --model-parallel-size 2"}};

enum { FEW_STEPS = 8 /* an epoch has 6 */ };

static void make_few(void)
{
    make_run_folder();
    if (run("", RUN "--steps %d --metrics single.json", FEW_STEPS) != 0)
        fprintf(stderr, "the single run failed: %s\n", text_of("log"));
}

START_TEST(test_mpirun)
{
    char launcher[512];
    snprintf(launcher, sizeof launcher, "%s -n %d", getenv("MPIRUN"), settings[_i].ranks);
    check_runs(launcher, RUN "--sync-bn --enable-model-parallel %s --steps %d --metrics mpi.json", settings[_i].options, FEW_STEPS);
    check_metrics_agree("mpi.json", "single.json", ROUNDING);
    ck_assert_msg(strstr(text_of("log"), "ranks (mpi)") != NULL, "these ranks did not meet over MPI: %s", text_of("log"));
    ck_assert_msg(strchr(text_of("log"), '\033') == NULL, "a progress bar in a file: %s", text_of("log"));
}
END_TEST

/* ZeRO, 16 bits with an agreed scale, and clipping: what two ranks over shared memory come to. */
static const char *const shared[] = {"--enable-zero-optim 3 --enable-amp-mode bf16", "--enable-zero-optim 2 --enable-amp-mode fp16"};

START_TEST(test_shares)
{
    const char *launchers[] = {shardrun(2), getenv("MPIRUN")}, *names[] = {"shm.json", "mpi.json"};
    for (int i = 0; i < 2; i++) {
        char launcher[512];
        snprintf(launcher, sizeof launcher, "%s%s", launchers[i], i ? " -n 2" : "");
        check_runs(launcher, RUN "--sync-bn %s --clip-grad 0.5 --val-interval 0 --steps 5 --metrics %s", shared[_i], names[i]);
    }
    ck_assert_msg(strstr(text_of("log"), "ranks (mpi)") != NULL, "these ranks did not meet over MPI: %s", text_of("log"));
    check_metrics_agree("mpi.json", "shm.json", 1e-6);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("imagenet under mpirun");
    TCase *tcase = test_case(suite, "mpirun");
    tcase_set_timeout(tcase, 180);
    tcase_add_unchecked_fixture(tcase, make_few, drop_single);
    tcase_add_loop_test(tcase, test_mpirun, 0, sizeof settings / sizeof *settings);
    tcase_add_loop_test(tcase, test_shares, 0, sizeof shared / sizeof *shared);
    return test_run(suite);
}
