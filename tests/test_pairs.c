/* The reader of pairs for verification in projects/arcface: pickles as Python writes them, exact errors, and files that are cut
 * or changed anywhere. */
#include "support/heap.h"
#include "support/ranks.h"
#include "support/scratch.h"

#include "pairs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BYTES(text)                                                                                                              \
    {                                                                                                                            \
        text, sizeof text - 1                                                                                                    \
    }

typedef struct content {
    const char *bytes;
    size_t size;
} content;

/* ([b"one", b"two", b"three", b"four"], [True, False]), by pickle of Python 3 and, with strings, as by that of Python 2. */
static const content sound[] = {
    BYTES("\200\003]q\000(C\003oneq\001C\003twoq\002C\005threeq\003C\004fourq\004e]q\005(\210\211e\206q\006."),
    BYTES("\200\004\225(\000\000\000\000\000\000\000]\224(C\003one\224C\003two\224C\005three\224C\004four\224e]\224(\210\211e\206"
          "\224."),
    BYTES("\200\005\225(\000\000\000\000\000\000\000]\224(C\003one\224C\003two\224C\005three\224C\004four\224e]\224(\210\211e\206"
          "\224."),
    BYTES("\200\002]q\001(U\003oneq\002U\003twoq\003T\005\000\000\000threeU\004foure]q\004(\210\211e\206q\005."), /* cPickle */
    BYTES("(](U\003oneU\003twoU\005threeU\004foure](I01\nI00\net."),                                              /* protocol 1 */
    BYTES("((lp0\nU\003oneaU\003twoaU\005threeaU\004foura(lp1\nI01\naI00\natp2\n."), /* text opcodes */
    BYTES(
        "\200\003](B\003\000\000\000oneq\000C\003two\216\005\000\000\000\000\000\000\000three\226\004\000\000\000\000\000\000\000"
        "foure](K\001K\000e\206."),
};
#define SOUND (sizeof sound / sizeof *sound)

static pair_set *read_content(content from)
{
    uint8_t *copy = malloc(from.size + 1);
    memcpy(copy, from.bytes, from.size);
    return pair_set_read("pairs.bin", copy, from.size);
}

static void check_image(const pair_set *set, int64_t number, const char *expected)
{
    image_file file = {0};
    ck_assert_int_eq(pair_set_image(set, number, &file), SHARD_OK);
    ck_assert_uint_eq(file.size, strlen(expected));
    ck_assert_mem_eq(file.bytes, expected, file.size);
    image_file_free(&file);
}

START_TEST(test_accepts)
{
    pair_set *set = read_content(sound[_i]);
    ck_assert_msg(set != NULL, "%s", shard_last_error());
    ck_assert_int_eq(pair_set_count(set), 2);
    ck_assert(pair_set_same(set, 0) && !pair_set_same(set, 1));
    static const char *const expected[] = {"one", "two", "three", "four"};
    for (int i = 0; i < 4; i++)
        check_image(set, i, expected[i]);
    image_source source = pair_set_source(set);
    ck_assert_int_eq(source.images, 4);
    ck_assert_int_eq(source.label(source.of, 3), 1);
    pair_set_close(set);
}
END_TEST

/* The same object twice: the second time it is taken from the memo. */
START_TEST(test_accepts_noted_bytes)
{
    pair_set *set = read_content((content)BYTES("\200\004](C\003one\224h\000C\003two\224h\001e](\210\210e\206."));
    ck_assert_msg(set != NULL, "%s", shard_last_error());
    check_image(set, 1, "one");
    check_image(set, 3, "two");
    pair_set_close(set);
}
END_TEST

/* A list of empty bytes: an image that no decoder takes, but a list. */
START_TEST(test_accepts_empty_bytes)
{
    image_file file = {0};
    pair_set *set = read_content((content)BYTES("](C\000C\000e](\210e\206."));
    ck_assert_msg(set != NULL, "%s", shard_last_error());
    ck_assert_int_eq(pair_set_count(set), 1);
    ck_assert_int_eq(pair_set_image(set, 1, &file), SHARD_OK);
    ck_assert_uint_eq(file.size, 0);
    image_file_free(&file);
    pair_set_close(set);
}
END_TEST

static const struct {
    content from;
    const char *pattern; /* after "pairs.bin: " */
} bad[] = {
    {BYTES(""), "byte 0: *ends before*"},
    {BYTES("\200"), "byte 0: *ends within an opcode*"},
    {BYTES("\200\006."), "byte 0: a protocol*"},
    {BYTES("."), "byte 0: the pickle is not*"},
    {BYTES("]."), "byte 1: the pickle is not*"},
    {BYTES("]]]"), "byte 2: a third list*"},
    {BYTES("cos\nsystem\n(S'true'\ntR."), "byte 0: the opcode 0x63 calls a function*"},
    {BYTES("\200\004\214\002os\224\223."), "byte 2: the opcode 0x8c is none of those*"},
    {BYTES("\200\004\223."), "byte 2: the opcode 0x93 calls a function*"},
    {BYTES("]R."), "byte 1: the opcode 0x52 calls a function*"},
    {BYTES("]}."), "byte 1: the opcode 0x7d is none of those*"},
    {BYTES("C\003on"), "byte 0: bytes that go beyond*"},
    {BYTES("B\377\377\377\377xx"), "byte 0: bytes that go beyond*"},
    {BYTES("\216\377\377\377\377\377\377\377\377xx"), "byte 0: bytes that go beyond*"},
    {BYTES("\225\377\377\377\377\377\377\377\377]"), "byte 0: a frame *"},
    {BYTES("K\002."), "byte 0: *neither 0 nor 1"},
    {BYTES("I2\n."), "byte 0: *neither 0 nor 1"},
    {BYTES("I-1\n."), "byte 0: *10 digits"},
    {BYTES("I99999999999\n."), "byte 0: *10 digits"},
    {BYTES("I1"), "byte 0: *10 digits"},
    {BYTES("0."), "byte 0: removes a value*"},
    {BYTES("a."), "byte 0: appends without a list*"},
    {BYTES("\210\210a."), "byte 2: appends to a value*"},
    {BYTES("e."), "byte 0: appends without a mark*"},
    {BYTES("(e."), "byte 1: appends without a mark*"},
    {BYTES("](]e."), "byte 3: appends a value*"},
    {BYTES("](\210C\001xe."), "byte 6: a list of both*"},
    {BYTES("l."), "byte 0: a list without*"},
    {BYTES("\206."), "byte 0: *not of two values"},
    {BYTES("]\206."), "byte 1: *not of two values"},
    {BYTES("(]]\210t."), "byte 4: *not of two values"},
    {BYTES("(]]tt."), "byte 4: *not of two values"},
    {BYTES("]\210\206."), "byte 2: *not of two lists"},
    {BYTES("q\000"), "byte 0: notes a value, *"},
    {BYTES("]r\377\377\377\177"), "byte 1: notes a value by*"},
    {BYTES("h\000"), "byte 0: takes a value*"},
    {BYTES("]q\000h\000"), "byte 3: takes a noted value*"},
    {BYTES("](C\001xC\001ye](\210e\206.."), "byte 14: bytes behind*"},
    {BYTES("](\210\210e](C\001xe\206."), "byte 12: the tuple is not*"},
    {BYTES("]]\206."), "byte 3: the tuple is not*"},
    {BYTES("](C\001xC\001yC\001ze](\210e\206."), "3 images and 1 bools*"},
    {BYTES("](C\001xC\001ye](\210\210e\206."), "2 images and 2 bools*"},
};

START_TEST(test_refuses)
{
    char pattern[256];
    snprintf(pattern, sizeof pattern, "pairs.bin: %s", bad[_i].pattern);
    ck_assert(read_content(bad[_i].from) == NULL);
    check_error(SHARD_ERROR_FORMAT, pattern);
}
END_TEST

START_TEST(test_files)
{
    const char *path = scratch_path("lfw.bin");
    write_file(path, sound[0].bytes, sound[0].size);
    pair_set *set = pair_set_open(path);
    ck_assert_msg(set != NULL, "%s", shard_last_error());
    pair_set_close(set);
    ck_assert(pair_set_open("/nowhere/lfw.bin") == NULL);
    check_error(SHARD_ERROR_IO, "/nowhere/lfw.bin: *");
    ck_assert(pair_set_open("/") == NULL);
    check_error(SHARD_ERROR_IO, "/: not a regular file");
}
END_TEST

/* Each byte by each other one, and cut there: refused, or a set whose images are in the file. */
START_TEST(test_changed_files)
{
    content from = sound[_i];
    int cases = 0, taken = 0;
    for (size_t at = 0; at < from.size; at++)
        for (int other = 0; other <= 256; other++, cases++) {
            char text[128];
            memcpy(text, from.bytes, from.size);
            text[at] = (char)other;
            pair_set *set = read_content((content){text, other == 256 ? at : from.size});
            taken += set != NULL;
            for (int64_t i = 0; set && i < pair_set_source(set).images; i++) {
                image_file file = {0};
                ck_assert_int_eq(pair_set_image(set, i, &file), SHARD_OK);
                ck_assert_uint_lt(file.size, from.size);
                image_file_free(&file);
            }
            ck_assert(set != NULL || shard_last_status() == SHARD_ERROR_FORMAT);
            pair_set_close(set);
            shard_clear_error();
        }
    ck_assert(taken > 0 && taken < cases);
    printf("cases: %d\n", cases);
}
END_TEST

/* Opcodes of one byte that each leave a value: memory is at most that of SECURITY.md, whatever the length. */
START_TEST(test_memory)
{
    static const char *const begins[] = {"(", "](", "]", "]("}, repeated[] = "(\210\224\210", *const ends[] = {"", "", "", "e"};
    for (size_t size = 200000; size < 300000; size += 12500) {
        char *text = malloc(size);
        size_t begin = strlen(begins[_i]), end = strlen(ends[_i]);
        memset(text, repeated[_i], size);
        memcpy(text, begins[_i], begin);
        memcpy(text + size - end, ends[_i], end);
        heap_start();
        ck_assert(read_content((content){text, size}) == NULL);
        size_t peak = heap_peak();
        check_error(SHARD_ERROR_FORMAT, "*the file ends before the pickle does*");
        ck_assert_msg(peak > 24 * size && peak <= 100 * size, "%zu bytes of memory for a file of %zu", peak, size);
        free(text);
        shard_clear_error();
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pairs");
    TCase *tcase = test_case(suite, "pairs");
    tcase_add_loop_test(tcase, test_accepts, 0, SOUND);
    tcase_add_test(tcase, test_accepts_noted_bytes);
    tcase_add_test(tcase, test_accepts_empty_bytes);
    tcase_add_loop_test(tcase, test_refuses, 0, sizeof bad / sizeof *bad);
    tcase_add_test(tcase, test_files);
    tcase_add_loop_test(tcase, test_changed_files, 0, 2);
    tcase_add_loop_test(tcase, test_memory, 0, 4);
    scratch_open();
    int code = test_run(suite);
    scratch_close();
    return code;
}
