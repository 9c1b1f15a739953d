/* Where plugins (libshard-<name>.so) are looked for. */
#include "support/ranks.h"

#include "base/plugin.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char looked[4096];
static bool privileged, there; /* there: files are those of the file system */
static uid_t user = (uid_t)-1; /* not -1: this process's user */

/* In the C library's place. */
uid_t geteuid(void)
{
    return user == (uid_t)-1 ? getuid() : user;
}

int access(const char *path, int mode)
{
    if (there)
        return faccessat(AT_FDCWD, path, mode, 0);
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

/* A shell that finds a program in PATH calls it by its name alone. */
START_TEST(test_called_by_name)
{
    char name[] = "test_plugin_path", list[] = "list", found[sizeof looked] = "";
    int ends[2];
    ck_assert_int_eq(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDOUT_FILENO);
        execv("/proc/self/exe", (char *[]){name, list, NULL});
        _exit(1);
    }
    close(ends[1]);
    FILE *output = fdopen(ends[0], "r");
    ck_assert(output && fread(found, 1, sizeof found - 1, output) > 0);
    fclose(output);
    ck_assert_int_eq(waitpid(child, NULL, 0), child);
    look(NULL);
    ck_assert_str_eq(found, looked);
}
END_TEST

/* Of a program that has the library inside. */
START_TEST(test_added)
{
    static const char *const added[] = {"/apart/libshard", "../lib/libshard", "/apart/11:21:17/libshard"};
    for (int i = 0; i < 3; i++) {
        shard_plugin_add_folder(added[i]);
        look("/one");
        shard_plugin_add_folder(NULL);
        const char *own = strchr(looked, '\n') + 1, *second = strchr(own, '\n') + 1, *last = strchr(second, '\n') + 1;
        ck_assert_msg(strncmp(looked, "/one/", 5) == 0 && strstr(second, "/libshard/libshard-test.so\n"), "looked for %s",
                      looked);
        char expected[4096];
        bool relative = added[i][0] == '.';
        int folder = (int)(strstr(own, "/libshard-test.so") - own);
        snprintf(expected, sizeof expected, "%.*s%s%s/libshard-test.so\n", relative ? folder : 0, own, relative ? "/" : "",
                 added[i]);
        ck_assert_str_eq(last, expected);
    }
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

/* A plugin of one byte in a folder of its own: it is found, and not loaded. */
static void refuse(mode_t folder_mode, mode_t file_mode, const char *keyword)
{
    char folder[] = "/tmp/plugin_path.XXXXXX", file[64];
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(file, sizeof file, "%s/libshard-test.so", folder);
    int descriptor = open(file, O_CREAT | O_WRONLY, 0600);
    ck_assert_int_eq(write(descriptor, "x", 1), 1);
    close(descriptor);
    ck_assert(chmod(file, file_mode) == 0 && chmod(folder, folder_mode) == 0);
    setenv("SHARD_PLUGIN_PATH", folder, 1);
    there = true;
    ck_assert_ptr_null(shard_plugin_load("test", "symbol", "it is not there", "install it", false));
    there = false;
    check_error(SHARD_ERROR_UNAVAILABLE, keyword);
    ck_assert(unlink(file) == 0 && rmdir(folder) == 0);
}

/* A symbolic link, in a folder of this user, to a file in a folder that every user may write to. */
START_TEST(test_link)
{
    char folder[] = "/tmp/plugin_link.XXXXXX", open_folder[] = "/tmp/plugin_open.XXXXXX", file[64], target[64];
    ck_assert(mkdtemp(folder) && mkdtemp(open_folder));
    snprintf(file, sizeof file, "%s/libshard-test.so", folder);
    snprintf(target, sizeof target, "%s/plugin", open_folder);
    close(open(target, O_CREAT | O_WRONLY, 0600));
    ck_assert(symlink(target, file) == 0 && chmod(open_folder, 0777) == 0);
    setenv("SHARD_PLUGIN_PATH", folder, 1);
    there = true;
    ck_assert_ptr_null(shard_plugin_load("test", "symbol", "it is not there", "install it", false));
    check_error(SHARD_ERROR_UNAVAILABLE, "*is not loaded: every user may write to /tmp/plugin_open.*");
    ck_assert_int_eq(chmod(open_folder, 0700), 0);
    ck_assert_ptr_null(shard_plugin_load("test", "symbol", "it is not there", "install it", false));
    check_error(SHARD_ERROR_UNAVAILABLE, "cannot load libshard-test.so (install it): *");
    there = false;
    ck_assert(unlink(target) == 0 && unlink(file) == 0 && rmdir(folder) == 0 && rmdir(open_folder) == 0);
}
END_TEST

START_TEST(test_trust)
{
    refuse(0700, 0600, "cannot load libshard-test.so (install it): *");
    refuse(0777, 0600, "*is not loaded: every user may write to /tmp/plugin_path.*");
    refuse(01777, 0600, "*is not loaded: every user may write to /tmp/plugin_path.*");
    refuse(0700, 0666, "*is not loaded: every user may write to */libshard-test.so;*");
    if (getuid() != 0) /* another user's files would be needed; root's are trusted */
        return;
    char folder[] = "/tmp/plugin_path.XXXXXX", file[64];
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(file, sizeof file, "%s/libshard-test.so", folder);
    close(open(file, O_CREAT | O_WRONLY, 0600));
    ck_assert_int_eq(chown(file, 4711, 4711), 0);
    setenv("SHARD_PLUGIN_PATH", folder, 1);
    there = true;
    ck_assert_ptr_null(shard_plugin_load("test", "symbol", "it is not there", "install it", false));
    check_error(SHARD_ERROR_UNAVAILABLE, "*libshard-test.so belongs to user 4711;*");
    user = 4711;
    ck_assert_ptr_null(shard_plugin_load("test", "symbol", "it is not there", "install it", false));
    check_error(SHARD_ERROR_UNAVAILABLE, "cannot load libshard-test.so (install it): *"); /* its own, in root's folder */
    user = (uid_t)-1;
    there = false;
    ck_assert(unlink(file) == 0 && rmdir(folder) == 0);
}
END_TEST

START_TEST(test_relative)
{
    setenv("SHARD_PLUGIN_PATH", "/one:build", 1);
    looked[0] = '\0';
    ck_assert_ptr_null(shard_plugin_load("test", "symbol", "it is not there", "install it", false));
    check_error(SHARD_ERROR_ARGUMENT, "SHARD_PLUGIN_PATH has the folder build, which is not absolute*");
    ck_assert_str_eq(looked, "");
}
END_TEST

/* "list": prints where this program looks. */
int main(int count, char **arguments)
{
    if (count > 1 && strcmp(arguments[1], "list") == 0) {
        unsetenv("SHARD_PLUGIN_PATH");
        shard_plugin_load("test", "symbol", "", "", false);
        return fputs(looked, stdout) == EOF;
    }
    Suite *suite = suite_create("plugin_path");
    TCase *tcase = test_case(suite, "plugin_path");
    tcase_add_test(tcase, test_unset);
    tcase_add_test(tcase, test_order);
    tcase_add_test(tcase, test_called_by_name);
    tcase_add_test(tcase, test_added);
    tcase_add_test(tcase, test_privileged);
    tcase_add_test(tcase, test_trust);
    tcase_add_test(tcase, test_link);
    tcase_add_test(tcase, test_relative);
    return test_run(suite);
}
