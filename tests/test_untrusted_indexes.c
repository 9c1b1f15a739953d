/* Indexes of checkpoints in several files from strangers: the exact text of each case of untrusted/indexes.txt. */
#include "support/cases.h"
#include "support/heap.h"
#include "support/ranks.h"
#include "support/scratch.h"

#include "../tools/checkpoint/index.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The files of the folder, as the table's head has them. */
static void make_folder(const char *folder)
{
    static const struct {
        const char *name, *make;
    } files[] = {
        {"m1", "1 {\"a\":%T(U8 [1] 0 1)}"},
        {"m2", "1 {\"b\":%T(U8 [1] 0 1)}"},
        {"two", "2 {\"b\":%T(U8 [1] 0 1),\"c\":%T(U8 [1] 1 2)}"},
        {"odd", "1 {\"\\u001b[31m\\n\":%T(U8 [1] 0 1)}"},
        {"bad", "1 {\"a\":%T(U8 [1] 0 2)}"},
        {"wrong", "1 {\"__metadata__\":{\"crc64.header\":\"0123456789abcdef\",\"crc64.tensors\":\"{}\"},\"a\":%T(U8 [1] 0 1)}"},
        {"cut", "raw %20%00%00%00%00%00%00%00{"},
        {"pickle", "raw PK%03%04 and more"},
    };
    char path[700];
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        size_t bytes;
        unsigned char *file = case_file(files[i].make, &bytes);
        snprintf(path, sizeof path, "%s/%s", folder, files[i].name);
        write_file(path, file, bytes);
        free(file);
    }
    snprintf(path, sizeof path, "%s/folder", folder);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/fifo", folder);
    ck_assert_int_eq(mkfifo(path, 0700), 0);
    snprintf(path, sizeof path, "%s/nowhere", folder);
    ck_assert_int_eq(symlink("missing", path), 0);
    snprintf(path, sizeof path, "%s/loop", folder);
    ck_assert_int_eq(symlink("loop", path), 0);
    snprintf(path, sizeof path, "%s/null", folder);
    ck_assert_int_eq(symlink("/dev/null", path), 0);
}

static void tell(untrusted_case *c, const char *folder)
{
    char path[700], read[300];
    size_t bytes;
    source_list list = {0};
    unsigned char *text = case_bytes(c->make, &bytes);
    snprintf(path, sizeof path, "%s/INDEX", folder);
    write_file(path, text, bytes);
    shard_status status = index_add_sources(&list, path, false);
    size_t used = (size_t)snprintf(read, sizeof read, "read: %" PRId64 " files", list.count);
    for (int64_t i = 0; i < list.count && i < 4; i++)
        used += (size_t)snprintf(read + used, sizeof read - used, ", %s", strrchr(list.at[i].path, '/') + 1);
    case_told(c, status == SHARD_OK ? read : shard_last_error(), folder, "FOLDER");
    ck_assert_ptr_null(strpbrk(c->now, "\n\r\t\033"));
    shard_clear_error();
    sources_free(&list);
    free(text);
}

START_TEST(test_table)
{
    case_table table = cases_open("untrusted/indexes.txt");
    const char *folder = scratch_path(".");
    make_folder(folder);
    for (int i = 0; i < table.count; i++)
        tell(&table.cases[i], folder);
    cases_close(&table);
}
END_TEST

/* Of an index of so many bytes, with its text. */
static size_t allowed(size_t index_bytes)
{
    return 4 * index_bytes + 1000000;
}

static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";

/* Names of four letters, each with a file of one: many entries in few bytes. */
static size_t write_short_names(char *text, size_t bytes)
{
    size_t used = (size_t)sprintf(text, "{\"weight_map\":{");
    for (unsigned i = 0; used < bytes - 30; i++)
        used += (size_t)sprintf(text + used, "%s\"%c%c%c%c\":\"f\"", i ? "," : "", letters[i % 62], letters[i / 62 % 62],
                                letters[i / 3844 % 62], letters[i / 238328 % 62]);
    return used + (size_t)sprintf(text + used, "}}");
}

static size_t write_escapes(char *text, size_t bytes)
{
    size_t used = (size_t)sprintf(text, "{\"weight_map\":{\"");
    while (used < bytes - 30)
        used += (size_t)sprintf(text + used, "\\u20ac");
    return used + (size_t)sprintf(text + used, "\":\"f\"}}");
}

static size_t write_nested(char *text, size_t bytes)
{
    size_t used = (size_t)sprintf(text, "{\"metadata\":{\"a\":[");
    while (used < bytes - 30)
        used += (size_t)sprintf(text + used, "[],");
    return used + (size_t)sprintf(text + used, "0]},\"weight_map\":{\"a\":\"f\"}}");
}

/* They are read, and their file is not there. */
START_TEST(test_memory)
{
    size_t (*const writers[])(char *, size_t) = {write_short_names, write_escapes, write_nested};
    const char *path = scratch_path("large");
    enum { BYTES = 8000000 };
    char *text = malloc(BYTES);
    size_t bytes = writers[_i](text, BYTES);
    write_file(path, text, bytes);
    free(text);
    source_list list = {0};
    heap_start();
    ck_assert_int_eq(index_add_sources(&list, path, false), SHARD_ERROR_IO);
    ck_assert_msg(heap_peak() <= allowed(bytes), "%zu bytes of memory for an index of %zu", heap_peak(), bytes);
    check_error(SHARD_ERROR_IO, "*/f*");
    sources_free(&list);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("untrusted_indexes");
    TCase *tests = test_case(suite, "untrusted_indexes");
    tcase_add_test(tests, test_table);
    tcase_add_loop_test(tests, test_memory, 0, 3);
    scratch_open();
    int failed = test_run(suite);
    scratch_close();
    return failed;
}
