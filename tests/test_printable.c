/* Names of files may have any bytes: what is printed of them is one line and leaves a terminal alone. */
#include "support/ranks.h"
#include "support/scratch.h"

#include "base/log.h"
#include "base/printable.h"

#include <shard/checkpoint.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EVIL "x\nshard error: everything is fine\033[2J.png"
#define TAMED "x\\nshard error: everything is fine\\x1b[2J.png"

static const struct {
    const char *text, *printed;
} texts[] = {
    {"", ""},
    {NULL, ""},
    {"größe 名前 \U0001F600 a\\b", "größe 名前 \U0001F600 a\\b"},
    {EVIL, TAMED},
    {"\t\r\177\1", "\\t\\r\\x7f\\x01"},
    {"\x80 \xc3 \xc3(", "\\x80 \\xc3 \\xc3("},
    {"\xc0\xaf \xe0\x80\xaf \xed\xa0\x80 \xf5\x80\x80\x80", "\\xc0\\xaf \\xe0\\x80\\xaf \\xed\\xa0\\x80 \\xf5\\x80\\x80\\x80"},
    {"\xc2\x9b", "\\xc2\\x9b"},                                     /* C1's CSI, as ESC [ */
    {"\xe2\x80\xa8\xe2\x80\xae", "\\xe2\\x80\\xa8\\xe2\\x80\\xae"}, /* a line separator; right to left */
    {"\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"},
    {"\xe2\x82", "\\xe2\\x82"},
    {"\xe2\x80\x8b\xe2\x80\x8f\xd8\x9c", "\\xe2\\x80\\x8b\\xe2\\x80\\x8f\\xd8\\x9c"},          /* no width; marks of direction */
    {"\xe2\x81\xa6\xe2\x81\xaf\xef\xbb\xbf", "\\xe2\\x81\\xa6\\xe2\\x81\\xaf\\xef\\xbb\\xbf"}, /* an isolate; U+FEFF */
    {"\xc2\xad\xe1\xa0\x8e\xef\xbf\xb9\xf3\xa0\x80\xa1", "\\xc2\\xad\\xe1\\xa0\\x8e\\xef\\xbf\\xb9\\xf3\\xa0\\x80\\xa1"},
    {"\xc2\xa0\xe2\x80\x90\xe2\x80\xaf\xe2\x81\xb0\xef\xbf\xbd",
     "\xc2\xa0\xe2\x80\x90\xe2\x80\xaf\xe2\x81\xb0\xef\xbf\xbd"}, /* next to them */
};

START_TEST(test_texts)
{
    char line[200];
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        ck_assert_str_eq(shard_printable(line, sizeof line, texts[i].text), texts[i].printed);
        ck_assert_str_eq(shard_printable(line, sizeof line, texts[i].printed), texts[i].printed);
    }
    ck_assert_str_eq(shard_printable(NULL, 3, "a"), "");
    ck_assert_str_eq(shard_printable(line, 0, "a"), "");
}
END_TEST

START_TEST(test_cut)
{
    char line[8];
    ck_assert_str_eq(shard_printable(line, 1, "a"), "");
    ck_assert_str_eq(shard_printable(line, 4, "abcdef"), "abc");
    ck_assert_str_eq(shard_printable(line, 4, "ab\n"), "ab");
    ck_assert_str_eq(shard_printable(line, 5, "ab\n"), "ab\\n");
    ck_assert_str_eq(shard_printable(line, 4, "aßß"), "aß");
}
END_TEST

#define DOTS "......................................" /* 38 */

/* The place from which two texts are shown. */
START_TEST(test_show_from)
{
    ck_assert_uint_eq(shard_show_from("abc", "abd", 0), 0);
    ck_assert_uint_eq(shard_show_from("abcd" DOTS "e", "abcd" DOTS "f", 43), 0);
    ck_assert_uint_eq(shard_show_from("abcd" DOTS "e", "abcd" DOTS "f", 42), 2);
    ck_assert_uint_eq(shard_show_from("a漢" DOTS "e", "a漢" DOTS, 42), 1); /* the whole character */
}
END_TEST

/* Names in messages: in quotes, cut where they are long, never within a character or an escape. */
START_TEST(test_quoted)
{
    char name[120];
    ck_assert_str_eq(shard_quoted("größe"), "\"größe\"");
    ck_assert_str_eq(shard_quoted(EVIL), "\"" TAMED "\"");
    for (int before = 90; before <= 96; before++)
        for (int i = 0; i < 2; i++) {
            memset(name, 'x', (size_t)before);
            strcpy(name + before, i ? "\033and more" : "名 and more");
            const char *quoted = shard_quoted(name);
            size_t length = strlen(quoted);
            ck_assert_uint_le(length, 96 + 5);
            ck_assert_str_eq(quoted + length - 4, "...\"");
            bool shown = before + (i ? 4 : 3) <= 96;
            ck_assert_int_eq(strstr(quoted, i ? "\\x1b" : "名") != NULL, shown);
            ck_assert(shown || quoted[length - 5] == 'x');
        }
}
END_TEST

START_TEST(test_errors)
{
    shard_error(SHARD_ERROR_IO, "cannot read %s", EVIL);
    check_error(SHARD_ERROR_IO, "cannot read x\\\\nshard error: everything is fine\\\\x1b\\[2J.png");
    shard_tensors *none = shard_tensors_create();
    shard_load(none, EVIL);
    check_error(SHARD_ERROR_IO, "cannot open x\\\\nshard error: everything is fine\\\\x1b\\[2J.png: No such file*");
    shard_tensors_destroy(none);
}
END_TEST

START_TEST(test_log)
{
    const char *path = scratch_path("log");
    int before = dup(STDERR_FILENO), file = open(path, O_CREAT | O_WRONLY, 0600);
    ck_assert(file >= 0 && dup2(file, STDERR_FILENO) >= 0);
    shard_log_message(SHARD_LOG_ERROR, "skipped %s", EVIL);
    ck_assert(dup2(before, STDERR_FILENO) >= 0);
    size_t bytes;
    char *line = read_file(path, &bytes);
    line = realloc(line, bytes + 1);
    line[bytes] = '\0';
    ck_assert_str_eq(line, "shard error: skipped " TAMED "\n");
    free(line);
    close(file);
    close(before);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("printable");
    TCase *tcase = test_case(suite, "printable");
    tcase_add_test(tcase, test_texts);
    tcase_add_test(tcase, test_cut);
    tcase_add_test(tcase, test_show_from);
    tcase_add_test(tcase, test_quoted);
    tcase_add_test(tcase, test_errors);
    tcase_add_test(tcase, test_log);
    scratch_open();
    int failed = test_run(suite);
    scratch_close();
    return failed;
}
