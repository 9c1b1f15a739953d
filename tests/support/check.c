#include "support/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

TCase *test_case(Suite *suite, const char *name)
{
    TCase *tcase = tcase_create(name);
    tcase_set_timeout(tcase, 60);
    suite_add_tcase(suite, tcase);
    return tcase;
}

int test_run(Suite *suite)
{
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int run = srunner_ntests_run(runner), failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    if (run == 0)
        fprintf(stderr, "no test was run\n");
    return run == 0 || failed > 0;
}

int test_run_on_cpu(Suite *suite)
{
    enum { SKIPPED = 77 }; /* as Meson takes it */
    const char *device = getenv("SHARD_DEVICE");
    if (!device || !*device || strcmp(device, "cpu") == 0)
        return test_run(suite);
    printf("skipped: a test of the CPU alone, and SHARD_DEVICE is %s\n", device);
    srunner_free(srunner_create(suite));
    return SKIPPED;
}
