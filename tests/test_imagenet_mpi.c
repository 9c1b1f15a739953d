/* projects/imagenet under the mpirun that MPIRUN names: the losses of the single process. */
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

START_TEST(test_mpirun)
{
    char launcher[512];
    snprintf(launcher, sizeof launcher, "%s -n %d", getenv("MPIRUN"), settings[_i].ranks);
    check_runs(launcher, RUN "--sync-bn --enable-model-parallel %s --steps %d --metrics mpi.json", settings[_i].options, STEPS);
    check_metrics_agree("mpi.json", "single.json", ROUNDING);
    ck_assert_msg(strstr(text_of("log"), "ranks (mpi)") != NULL, "these ranks did not meet over MPI: %s", text_of("log"));
    ck_assert_msg(strchr(text_of("log"), '\033') == NULL, "a progress bar in a file: %s", text_of("log"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("imagenet under mpirun");
    TCase *tcase = test_case(suite, "mpirun");
    tcase_set_timeout(tcase, 180);
    tcase_add_unchecked_fixture(tcase, make_single, drop_single);
    tcase_add_loop_test(tcase, test_mpirun, 0, sizeof settings / sizeof *settings);
    return test_run(suite);
}
