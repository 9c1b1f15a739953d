/* Where plugins (libshard-<name>.so) are looked for. */
#include "support/ranks.h"

#include "base/plugin.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char looked[4096];
static bool privileged;

/* In the C library's place. */
int access(const char *path, int mode)
{
    (void)mode;
    strncat(looked, path, sizeof looked - strlen(looked) - 2);
    strcat(looked, "\n");
    return -1;
}

char *secure_getenv(const char *name)
{
    return privileged ? NULL : getenv(name);
}

static void look(const char *variable)
{
    looked[0] = '\0';
    if (variable)
        setenv("SHARD_PLUGIN_PATH", variable, 1);
    else
        unsetenv("SHARD_PLUGIN_PATH");
    ck_assert_ptr_null(shard_plugin_load("test", "symbol", "it is not there", "install it", false));
    check_error(SHARD_ERROR_UNAVAILABLE, "no libshard-test.so in *: it is not there");
}

/* The library's own folder and what lies in it. */
static bool is_own(const char *text)
{
    const char *second = strchr(text, '\n');
    return second && text[0] == '/' && strstr(second, "/libshard/libshard-test.so\n") && strchr(second + 1, '\n')[1] == '\0';
}

START_TEST(test_unset)
{
    look(NULL);
    ck_assert_msg(is_own(looked), "looked for %s", looked);
    ck_assert_ptr_ne(looked, strstr(looked, "/libshard-test.so\n"));
}
END_TEST

START_TEST(test_order)
{
    const char first[] = "/one/libshard-test.so\n/two/libshard-test.so\n";
    look("/one::/two:");
    ck_assert_msg(strncmp(looked, first, strlen(first)) == 0 && is_own(looked + strlen(first)), "looked for %s", looked);
}
END_TEST

START_TEST(test_privileged)
{
    privileged = true;
    look("/one");
    privileged = false;
    ck_assert_msg(is_own(looked), "looked for %s", looked);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("plugin_path");
    TCase *tcase = test_case(suite, "plugin_path");
    tcase_add_test(tcase, test_unset);
    tcase_add_test(tcase, test_order);
    tcase_add_test(tcase, test_privileged);
    return test_run(suite);
}
