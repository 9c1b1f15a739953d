/* The header of safetensors files: what is read, what is refused, what is written. */
#include "base/printable.h"
#include "support/heap.h"
#include "support/ranks.h"
#include "support/scratch.h"

#include "checkpoint/safetensors.h"

#include <shard/checkpoint.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

/* ---- refused ---- */

typedef struct malformed {
    const char *text;
    int64_t data_bytes;
    const char *pattern;
} malformed;

#define TENSOR(dtype, shape, offsets) "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static const malformed texts[] = {
    {"", 0, "*does not begin with {*"},
    {" {}", 0, "*does not begin with {*"},
    {"[]", 0, "*does not begin with {*"},
    {"{", 0, "*header at byte *"},
    {"{} x", 0, "*header at byte *"},
    {"{}}", 0, "*header at byte *"},
    {"{\"a\":{}", 0, "*\"a\" has no dtype*"},
    {"{\"a\":{", 0, "*header at byte 6: it ends too early*"},
    {"{\"a\":{\"x\":[1,]}}", 0, "*header at byte 13: a value is needed here*"},
    {"{\"a\":{\"x\":01}}", 0, "*header at byte *"},
    {"{\"a\":{\"x\":\"\\ud800\"}}", 0, "*half of a surrogate pair*"},
    {"{\"a\":{\"x\":\"\\q\"}}", 0, "*unknown escape*"},
    {"{\"a\":{\"x\":\"\n\"}}", 0, "*control character*"},
    {"{\"__metadata__\":{\"a\":\"\",\"a\":\"\"}}", 0, "*__metadata__: \"a\" is a duplicate*"},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "*__metadata__ is a duplicate*"},
    {"{\"\xff\":{}}", 0, "*header at byte 2: bytes that are not UTF-8*"},
    {"{\"a\\u0000b\":" TENSOR("U8", "[]", "[0,1]") "}", 1, "*header at byte *NUL*"},
    {"{\"a\":" TENSOR("U8", "[]", "[0,1]") ",\"a\":" TENSOR("U8", "[]", "[0,1]") "}", 1, "*header has a duplicate of \"a\"*"},
    {"{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}", 1, "*header at byte *duplicate*"},
    {"{\"a\":1}", 0, "*\"a\" is not described by an object*"},
    {"{\"a\":null}", 0, "*\"a\" is not described by an object*"},
    {"{\"a\":{}}", 0, "*\"a\" has no dtype*"},
    {"{\"a\":{\"dtype\":32,\"shape\":[],\"data_offsets\":[0,1]}}", 1, "*\"a\" has no dtype*"},
    {"{\"a\":" TENSOR("F31", "[]", "[0,4]") "}", 4, "*\"a\" has dtype \"F31\", which is unknown*"},
    {"{\"a\":" TENSOR("f32", "[]", "[0,4]") "}", 4, "*\"a\" has dtype \"f32\", which is unknown*"},
    {"{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, "*\"a\" has no shape*"},
    {"{\"a\":" TENSOR("U8", "{}", "[0,1]") "}", 1, "*\"a\" has no shape*"},
    {"{\"a\":" TENSOR("U8", "[-1]", "[0,1]") "}", 1, "*\"a\": sizes and offsets must be integers from 0 to *"},
    {"{\"a\":" TENSOR("U8", "[1.0]", "[0,1]") "}", 1, "*\"a\": sizes and offsets must be integers from 0 to *"},
    {"{\"a\":" TENSOR("U8", "[\"1\"]", "[0,1]") "}", 1, "*\"a\": sizes and offsets must be integers from 0 to *"},
    {"{\"a\":" TENSOR("U8", "[18446744073709551617]", "[0,1]") "}", 1,
     "*sizes and offsets must be integers from 0 to 9223372036854775807*"},
    {"{\"a\":" TENSOR("U8", "[1]", "[-0,1]") "}", 1, "*\"a\": sizes and offsets must be integers from 0 to *"},
    {"{\"a\":" TENSOR("U8", "[-0]", "[0,0]") "}", 0, "*\"a\": sizes and offsets must be integers from 0 to *"},
    {"{\"a\":" TENSOR("U8", "[4294967296,4294967296]", "[0,0]") "}", 0, "*\"a\": its size overflows*"},
    {"{\"a\":" TENSOR("F64", "[2305843009213693952]", "[0,0]") "}", 0, "*\"a\": its size overflows*"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[]}}", 1, "*\"a\" has no pair of data_offsets*"},
    {"{\"a\":" TENSOR("U8", "[]", "[0]") "}", 1, "*\"a\" has no pair of data_offsets*"},
    {"{\"a\":" TENSOR("U8", "[]", "[0,1,2]") "}", 1, "*\"a\" has no pair of data_offsets*"},
    {"{\"a\":" TENSOR("U8", "[]", "[-1,0]") "}", 1, "*\"a\": sizes and offsets must be integers from 0 to *"},
    {"{\"a\":" TENSOR("U8", "[]", "[0,\"1\"]") "}", 1, "*\"a\": sizes and offsets must be integers from 0 to *"},
    {"{\"a\":" TENSOR("U8", "[1]", "[2,1]") "}", 2, "*\"a\" ends at 1, before it begins at 2*"},
    {"{\"a\":" TENSOR("F32", "[2]", "[0,7]") "}", 7, "*\"a\" has 7 bytes; its dtype and shape make it 8*"},
    {"{\"a\":" TENSOR("F32", "[2]", "[0,9223372036854775807]") "}", 8, "*\"a\" has 9223372036854775807 bytes; *make it 8*"},
    {"{\"a\":" TENSOR("F32", "[0]", "[0,4]") "}", 4, "*\"a\" has 4 bytes; its dtype and shape make it 0*"},
    {"{\"a\":" TENSOR("F4", "[3]", "[0,1]") "}", 1, "*\"a\" ends within a byte*"},
    {"{\"a\":" TENSOR("BOOL", "[3]", "[0,2]") "}", 2, "*\"a\" has 2 bytes; its dtype and shape make it 3*"},
    {"{\"a\":" TENSOR("U8", "[4]", "[0,4]") ",\"b\":" TENSOR("U8", "[4]", "[3,7]") "}", 7,
     "*\"b\" overlaps another tensor: it begins at 3, before byte 4*"},
    {"{\"a\":" TENSOR("U8", "[4]", "[0,4]") ",\"b\":" TENSOR("U8", "[4]", "[0,4]") "}", 4, "*overlaps another tensor*"},
    {"{\"a\":" TENSOR("U8", "[4]", "[0,4]") ",\"b\":" TENSOR("U8", "[0]", "[2,2]") "}", 4, "*\"b\" overlaps another tensor*"},
    {"{\"a\":" TENSOR("U8", "[4]", "[1,5]") "}", 5, "*a hole of 1 bytes before \"a\"*"},
    {"{\"b\":" TENSOR("U8", "[2]", "[6,8]") ",\"a\":" TENSOR("U8", "[4]", "[0,4]") "}", 8, "*a hole of 2 bytes before \"b\"*"},
    {"{\"a\":" TENSOR("U8", "[4]", "[0,4]") "}", 3, "*\"a\" ends at byte 4 of the data, which has 3: it was cut off*"},
    {"{\"a\":" TENSOR("U8", "[4]", "[0,4]") "}", 6, "*2 bytes after the last tensor*"},
    {"{}", 1, "*1 bytes after the last tensor*"},
    {"{\"__metadata__\":[]}", 0, "*__metadata__ is not an object*"},
    {"{\"__metadata__\":null}", 0, "*__metadata__ is not an object*"},
    {"{\"__metadata__\":{\"epoch\":3}}", 0, "*__metadata__: \"epoch\" is not a string*"},
    {"{\"__metadata__\":{\"a\":\"\\u0000\"}}", 0, "*header at byte *"},
};
#define TEXTS ((int)(sizeof texts / sizeof *texts))

START_TEST(test_malformed_text)
{
    const malformed *m = &texts[_i];
    shard_safetensors header;
    shard_status status = shard_safetensors_parse(&header, "some/path", m->text, strlen(m->text), m->data_bytes);
    ck_assert_msg(status == SHARD_ERROR_FORMAT, "accepted: %s", m->text);
    ck_assert_msg(strncmp(shard_last_error(), "some/path ", 10) == 0, "no path: %s", shard_last_error());
    check_error(SHARD_ERROR_FORMAT, m->pattern);
    shard_safetensors_free(&header);
}
END_TEST

static void check_inspect(const void *data, size_t bytes, const char *pattern)
{
    const char *path = scratch_path("malformed");
    write_file(path, data, bytes);
    shard_metadata *metadata = (void *)path; /* of no use after an error */
    ck_assert_ptr_null(shard_inspect(path, &metadata));
    ck_assert_ptr_null(metadata);
    check_error(SHARD_ERROR_FORMAT, pattern);
    metadata = (void *)path;
    shard_tensors *none = shard_tensors_create();
    ck_assert_int_ne(shard_load_with_metadata(none, path, &metadata, .local = true), SHARD_OK);
    ck_assert_ptr_null(metadata);
    shard_clear_error();
    shard_tensors_destroy(none);
}

START_TEST(test_malformed_length)
{
    check_inspect("", 0, "*it has 0 bytes, fewer than the 8*");
    check_inspect("\2\0\0\0\0\0\0", 7, "*it has 7 bytes, fewer than the 8*");
    check_inspect("\2\0\0\0\0\0\0\0{", 9, "*a header of 2 bytes in a file of 9: it was cut off*");
    check_inspect("\1\xe1\xf5\5\0\0\0\0{}", 10, "*a header of 100000001 bytes; the most is 100000000*");
    check_inspect("\0\xe1\xf5\5\0\0\0\0{}", 10, "*a header of 100000000 bytes in a file of 10: it was cut off*");
    check_inspect("\2\0\0\0\0\0\0\x80{}", 10, "*a header of 9223372036854775810 bytes; the most is*");
    check_inspect("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10, "*a header of 18446744073709551615 bytes; the most is*");
    check_inspect("\0\0\0\0\0\0\0\0", 8, "*does not begin with {*");
}
END_TEST

/* Files of other formats, given by mistake: as they begin. */
START_TEST(test_other_formats)
{
    static const struct {
        const char *first;
        size_t bytes;
        const char *pattern;
    } files[] = {
        {"PK\3\4\0\0\x08\x08\0\0", 10, "*/malformed is a zip file, as torch.save writes, not a safetensors file; "
                                               "convert it by safetensors.torch.save_file(torch.load(*), *) in Python*"},
        {"\x80\2\x8a\x0al\xfc\x9c\x46\xf9\x20", 10, "*is a pickle, as torch.save wrote before PyTorch 1.6, not*torch.load*"},
        {"\x80\4\x95\x13\0\0\0\1\0\0", 10, "*is a pickle, not*torch.load*"},
        {"\x89HDF\r\n\x1a\n\0\0", 10, "*is an HDF5 file, as Keras writes, not*safetensors.numpy.save_file*"},
        {"\x93NUMPY\1\0v\0", 10, "*is a NumPy file, not*safetensors.numpy.save_file*"},
        {"\x1f\x8b\x08\0\0\0\0\0\0\3", 10, "*is a gzip file, not a safetensors file; convert it by gunzip"},
        {"version https://git-lfs.github.com/spec/v1\n", 43, "*is a pointer of Git LFS, not*git lfs pull"},
        {"\x80\2\0\0\0\0\0\0{}", 10, "*a header of 640 bytes in a file of 10: it was cut off*"},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        check_inspect(files[i].first, files[i].bytes, files[i].pattern);
}
END_TEST

START_TEST(test_deep_nesting)
{
    size_t depth = 1000000;
    char *text = malloc(depth + 10);
    ck_assert_ptr_nonnull(text);
    memcpy(text, "{\"a\":{\"x\":", 10);
    memset(text + 10, '[', depth);
    shard_safetensors header;
    ck_assert_int_eq(shard_safetensors_parse(&header, "deep", text, depth + 10, 0), SHARD_ERROR_FORMAT);
    check_error(SHARD_ERROR_FORMAT, "*header at byte *depth*");
    shard_safetensors_free(&header);
    free(text);
}
END_TEST

/* The safetensors package takes 127 arrays and objects in each other, and so does this. */
START_TEST(test_depth_of_the_package)
{
    for (int depth = 125; depth <= 126; depth++) {
        char text[512], *at = text + sprintf(text, "{\"a\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1],\"x\":");
        memset(at, '[', (size_t)depth);
        memset(at + depth, ']', (size_t)depth);
        strcpy(at + 2 * depth, "}}");
        shard_safetensors header;
        ck_assert_int_eq(shard_safetensors_parse(&header, "deep", text, strlen(text), 1), (depth == 125 ? SHARD_OK : SHARD_ERROR_FORMAT));
        shard_safetensors_free(&header);
        shard_clear_error();
    }
}
END_TEST

/* What is not asked for takes no memory: as a tree, these arrays would take 45 times their text. */
START_TEST(test_memory_of_a_header)
{
    enum { BYTES = 30000000 };
    const char head[] = "{\"a\":{\"x\":[[]", tail[] = "],\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}";
    char *text = malloc(BYTES);
    ck_assert_ptr_nonnull(text);
    size_t used = sizeof head - 1;
    memcpy(text, head, used);
    for (; used + 3 + sizeof tail < BYTES; used += 3)
        memcpy(text + used, ",[]", 3);
    memcpy(text + used, tail, sizeof tail - 1);
    struct rusage before, after;
    shard_safetensors header;
    getrusage(RUSAGE_SELF, &before);
    check_ok(shard_safetensors_parse(&header, "path", text, used + sizeof tail - 1, 1));
    getrusage(RUSAGE_SELF, &after);
    ck_assert_int_eq(header.count, 1);
    ck_assert_int_lt(after.ru_maxrss - before.ru_maxrss, 20000); /* KiB */
    shard_safetensors_free(&header);
    free(text);
}
END_TEST

/* No memory is not called a malformed file. */
START_TEST(test_no_memory)
{
    const char *text = "{\"__metadata__\":{\"epoch\":\"3\",\"arch\":\"resnet18\"},\"a\":" TENSOR("U8", "[1]", "[0,1]") "}";
    int failures = 0;
    for (int at = 0; at < 100 && heap_can_fail(); at++) {
        shard_safetensors header;
        heap_fail_after(at);
        shard_status status = shard_safetensors_parse(&header, "path", text, strlen(text), 1);
        heap_fail_after(-1);
        if (status != SHARD_OK) {
            check_error(SHARD_ERROR_MEMORY, "no memory for *");
            failures++;
        }
        shard_safetensors_free(&header);
    }
    ck_assert_int_ge(failures, heap_can_fail() ? 4 : 0);
    ck_assert_int_lt(failures, 100);
}
END_TEST

/* A shape that Python takes and no tensor here can have. */
START_TEST(test_empty_and_too_large)
{
    const char text[] = "{\"big\":" TENSOR("F32", "[0,4611686018427387904,4611686018427387904]", "[0,0]") ",\"a\":"
                        TENSOR("U8", "[2]", "[0,2]") "}";
    const char *path = scratch_path("big");
    char file[sizeof text + 9] = {(char)(sizeof text - 1)};
    memcpy(file + 8, text, sizeof text - 1);
    memcpy(file + 8 + sizeof text - 1, "\3\4", 2);
    write_file(path, file, sizeof file);
    ck_assert_ptr_null(shard_inspect(path, NULL));
    check_error(SHARD_ERROR_UNSUPPORTED, "*/big: \"big\" is empty, and its other sizes overflow, which tensors here cannot have");
    shard_tensors *list = shard_tensors_create();
    shard_tensor *a = shard_zeros(SHARD_SHAPE(2), .dtype = SHARD_UINT8);
    check_ok(shard_tensors_add(list, "a", a));
    check_ok(shard_load(list, path, .allow_unexpected = true));
    uint8_t read[2];
    check_ok(shard_copy_to_host(a, read, sizeof read));
    ck_assert_int_eq(read[1], 4);
    shard_release(a);
    shard_tensors_destroy(list);
}
END_TEST

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What fuzzing found worth keeping; fuzz_safetensors.c aborts where it does not hold. */
START_TEST(test_corpus)
{
    DIR *folder = opendir(test_file("fuzz/corpus/safetensors"));
    ck_assert_ptr_nonnull(folder);
    int files = 0;
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        char path[512];
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", test_file("fuzz/corpus/safetensors"), entry->d_name);
        size_t bytes;
        uint8_t *data = read_file(path, &bytes);
        ck_assert_int_eq(LLVMFuzzerTestOneInput(data, bytes), 0);
        free(data);
        files++;
    }
    closedir(folder);
    ck_assert_int_ge(files, 14);
}
END_TEST

START_TEST(test_messages_are_one_line)
{
    const char *text = "{\"a\\nb\\u001b[2J01234567890123456789012345678901234567890123456789"
                       "01234567890123456789012345678901234567890123456789\":1}";
    shard_safetensors header;
    ck_assert_int_eq(shard_safetensors_parse(&header, "path", text, strlen(text), 0), SHARD_ERROR_FORMAT);
    ck_assert_ptr_null(strchr(shard_last_error(), '\n'));
    ck_assert_ptr_null(strchr(shard_last_error(), '\033'));
    check_error(SHARD_ERROR_FORMAT, "*\"a\\\\nb\\\\x1b\\[2J0123*...\" is not described by an object");
    shard_safetensors_free(&header);
    ck_assert_str_eq(shard_quoted("größe"), "\"größe\"");
}
END_TEST

/* ---- read ---- */

static shard_safetensors parse(const char *text, int64_t data_bytes)
{
    shard_safetensors header;
    check_ok(shard_safetensors_parse(&header, "path", text, strlen(text), data_bytes));
    return header;
}

START_TEST(test_well_formed)
{
    shard_safetensors header = parse("{\"b\":" TENSOR("F32", "[2,3]", "[8,32]") ",\"__metadata__\":{\"k\":\"v\"}, \"\":"
                                     TENSOR("I64", "[]", "[0,8]") ",\"e\":" TENSOR("BF16", "[0,7]", "[8,8]") ",\"more\":"
                                     "{\"extra\":[],\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[32,33]}}   \n", 33);
    ck_assert_int_eq(header.count, 4);
    ck_assert_str_eq(header.entries[0].name, "b"); /* in the header's order */
    ck_assert_str_eq(shard_metadata_get(&header.metadata, "k"), "v");
    const shard_entry *b = shard_safetensors_find(&header, "b"), *scalar = shard_safetensors_find(&header, "");
    ck_assert_ptr_eq(b, &header.entries[0]);
    ck_assert(b->dtype == SHARD_FLOAT32 && b->shape.ndim == 2 && b->shape.dim[1] == 3 && b->begin == 8 && b->end == 32);
    ck_assert(scalar->dtype == SHARD_INT64 && scalar->shape.ndim == 0 && scalar->begin == 0 && scalar->end == 8);
    ck_assert_int_eq(shard_safetensors_find(&header, "e")->shape.dim[1], 7);
    ck_assert_ptr_null(shard_safetensors_find(&header, "__metadata__"));
    ck_assert_ptr_null(shard_safetensors_find(&header, "c"));
    shard_safetensors_free(&header);

    header = parse("{}", 0);
    ck_assert_int_eq(header.count, 0);
    ck_assert_int_eq(header.metadata.count, 0);
    ck_assert_ptr_null(shard_safetensors_find(&header, ""));
    shard_safetensors_free(&header);
}
END_TEST

/* What the library has no dtype for stands in the way only of those who ask for it. */
START_TEST(test_other_dtypes)
{
    shard_safetensors header = parse("{\"a\":" TENSOR("BOOL", "[3]", "[0,3]") ",\"b\":" TENSOR("F4", "[3,2]", "[3,6]") ",\"c\":"
                                     TENSOR("C64", "[1]", "[6,14]") ",\"d\":" TENSOR("U8", "[1,1,1,1,1,1,1,1,2]", "[14,16]") "}",
                                     16);
    ck_assert_str_eq(shard_safetensors_find(&header, "a")->refusal, "has dtype BOOL");
    ck_assert_str_eq(shard_safetensors_find(&header, "b")->refusal, "has dtype F4");
    ck_assert_str_eq(shard_safetensors_find(&header, "c")->refusal, "has dtype C64");
    ck_assert_str_eq(shard_safetensors_find(&header, "d")->refusal, "has more than 8 dimensions");
    shard_safetensors_free(&header);
}
END_TEST

/* ---- written ---- */

START_TEST(test_golden_bytes)
{
    shard_entry entries[] = {
        {.name = "flags", .dtype = SHARD_UINT8, .shape = SHARD_SHAPE(3)},
        {.name = "small", .dtype = SHARD_FLOAT32, .shape = SHARD_SHAPE(1)},
        {.name = "größe\n", .dtype = SHARD_FLOAT32, .shape = SHARD_SHAPE(2, 1)},
        {.name = "count", .dtype = SHARD_INT64, .shape = SHARD_SCALAR},
        {.name = "empty", .dtype = SHARD_FLOAT16, .shape = SHARD_SHAPE(0)},
        {.name = "half", .dtype = SHARD_BFLOAT16, .shape = SHARD_SHAPE(1)},
    };
    shard_metadata *metadata = shard_metadata_create();
    check_ok(shard_metadata_set(metadata, "epoch", "3"));
    int64_t data_bytes, bytes;
    check_ok(shard_safetensors_lay_out(entries, 6, &data_bytes));
    ck_assert_int_eq(data_bytes, 25);
    char *header = shard_safetensors_format(entries, 6, metadata, &bytes);
    ck_assert_ptr_nonnull(header);
    static const char text[] = "{\"__metadata__\":{\"epoch\":\"3\"},"
                               "\"flags\":" TENSOR("U8", "[3]", "[22,25]") ","
                               "\"small\":" TENSOR("F32", "[1]", "[16,20]") ","
                               "\"größe\\n\":" TENSOR("F32", "[2,1]", "[8,16]") ","
                               "\"count\":" TENSOR("I64", "[]", "[0,8]") ","
                               "\"empty\":" TENSOR("F16", "[0]", "[22,22]") ","
                               "\"half\":" TENSOR("BF16", "[1]", "[20,22]") "}";
    ck_assert_int_eq(bytes, 4096);
    ck_assert_mem_eq(header, "\xf8\x0f\0\0\0\0\0\0", 8);
    ck_assert_mem_eq(header + 8, text, sizeof text - 1);
    for (int64_t i = 8 + (int64_t)sizeof text - 1; i < bytes; i++)
        ck_assert_int_eq(header[i], ' ');
    free(header);
    shard_metadata_destroy(metadata);
}
END_TEST

START_TEST(test_names_that_cannot_be)
{
    int64_t bytes;
    shard_entry metadata = {.name = "__metadata__", .shape = SHARD_SCALAR}, binary = {.name = "\xff", .shape = SHARD_SCALAR};
    ck_assert_ptr_null(shard_safetensors_format(&metadata, 1, NULL, &bytes));
    check_error(SHARD_ERROR_ARGUMENT, "*saved as \"__metadata__\"*");
    ck_assert_ptr_null(shard_safetensors_format(&binary, 1, NULL, &bytes));
    check_error(SHARD_ERROR_ARGUMENT, "*must be UTF-8*");
}
END_TEST

START_TEST(test_many_tensors)
{
    enum { COUNT = 20000 };
    shard_entry *entries = calloc(COUNT, sizeof *entries);
    char(*names)[32] = calloc(COUNT, sizeof *names);
    ck_assert(entries && names);
    for (int i = 0; i < COUNT; i++) {
        snprintf(names[i], sizeof names[i], "layer%d.名前", i * 7919 % COUNT);
        entries[i] = (shard_entry){.name = names[i], .dtype = (shard_dtype)(i % SHARD_DTYPES), .shape = SHARD_SHAPE(i % 11, 3)};
    }
    int64_t data_bytes, bytes;
    check_ok(shard_safetensors_lay_out(entries, COUNT, &data_bytes));
    char *text = shard_safetensors_format(entries, COUNT, NULL, &bytes);
    ck_assert_ptr_nonnull(text);
    ck_assert_int_eq(bytes % SHARD_SAFETENSORS_UNIT, 0);
    shard_safetensors header;
    check_ok(shard_safetensors_parse(&header, "many", text + 8, (size_t)bytes - 8, data_bytes));
    ck_assert_int_eq(header.count, COUNT);
    for (int i = 0; i < COUNT; i++) {
        const shard_entry *entry = shard_safetensors_find(&header, names[i]);
        ck_assert_ptr_eq(entry, &header.entries[i]);
        ck_assert(entry->dtype == entries[i].dtype && shard_shape_equal(&entry->shape, &entries[i].shape));
        ck_assert(entry->begin == entries[i].begin && entry->end == entries[i].end);
        ck_assert_int_eq(entry->begin % (int64_t)shard_dtype_size(entry->dtype), 0);
    }
    shard_safetensors_free(&header);
    free(text);
    free(names);
    free(entries);
}
END_TEST

START_TEST(test_sizes_that_overflow)
{
    int64_t half = (int64_t)1 << 60, data_bytes;
    shard_entry entries[] = {{.name = "a", .shape = SHARD_SHAPE(half)}, {.name = "b", .shape = SHARD_SHAPE(half)}};
    ck_assert_int_eq(shard_safetensors_lay_out(entries, 2, &data_bytes), SHARD_ERROR_MEMORY);
    check_error(SHARD_ERROR_MEMORY, "*2 tensors take more than *");
}
END_TEST

/* ---- tensors of other dtypes ---- */

START_TEST(test_inspects_what_can_be_loaded)
{
    const char *path = scratch_path("mixed.safetensors");
    static const char header[] =
        "{\"__metadata__\":{\"a\":\"b\"},\"mask\":{\"dtype\":\"BOOL\",\"shape\":[4],\"data_offsets\":[0,4]},"
        "\"w\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[4,12]}}";
    char file[8 + sizeof header - 1 + 12] = {(char)(sizeof header - 1)};
    memcpy(file + 8, header, sizeof header - 1);
    write_file(path, file, sizeof file);
    shard_metadata *metadata;
    ck_assert_ptr_null(shard_inspect(path, &metadata));
    check_error(SHARD_ERROR_UNSUPPORTED, "*: \"mask\" has dtype BOOL, which tensors here cannot have");
    ck_assert_ptr_null(metadata);
    shard_tensors *found = shard_inspect_loadable(path, &metadata);
    ck_assert_msg(found != NULL, "%s", shard_last_error());
    ck_assert_int_eq(shard_tensors_count(found), 1);
    ck_assert_str_eq(shard_tensors_name(found, 0), "w");
    ck_assert_int_eq(shard_numel(shard_tensors_at(found, 0)), 2);
    ck_assert_str_eq(shard_metadata_get(metadata, "a"), "b");
    check_ok(shard_load(found, path, .allow_unexpected = true));
    shard_tensors_destroy(found);
    shard_metadata_destroy(metadata);
    ck_assert_ptr_null(shard_inspect_loadable(NULL, &metadata));
    check_error(SHARD_ERROR_ARGUMENT, "shard_inspect_loadable: path *");
}
END_TEST

/* ---- the Python package's ---- */

START_TEST(test_python_file)
{
    shard_metadata *metadata = NULL;
    shard_tensors *found = shard_inspect(test_file("golden/python.safetensors"), &metadata);
    ck_assert_msg(found != NULL, "%s", shard_last_error());
    ck_assert_int_eq(shard_tensors_count(found), 9);
    ck_assert_str_eq(shard_metadata_get(metadata, "format"), "pt");
    int64_t epoch = 0;
    check_ok(shard_metadata_get_integer(metadata, "epoch", &epoch));
    ck_assert_int_eq(epoch, 7);
    shard_metadata_destroy(metadata);

    float weight[6], expected[] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 2.5f};
    double wide[2];
    int64_t tracked = 0;
    int32_t ints[3];
    uint8_t bytes[4];
    uint16_t half[2], brain[2];
    check_ok(shard_load(found, test_file("golden/python.safetensors")));
    const struct {
        const char *name;
        void *data;
        size_t bytes;
    } wanted[] = {{"fc.weight", weight, sizeof weight},
                  {"wide", wide, sizeof wide},
                  {"bn.num_batches_tracked", &tracked, sizeof tracked},
                  {"ints", ints, sizeof ints},
                  {"bytes", bytes, sizeof bytes},
                  {"half", half, sizeof half},
                  {"brain", brain, sizeof brain},
                  {"größe/名前", NULL, 0},
                  {"nothing", NULL, 0}};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        shard_tensor *tensor = shard_tensors_find(found, wanted[i].name);
        ck_assert_msg(tensor != NULL, "%s is missing", wanted[i].name);
        if (wanted[i].data)
            check_ok(shard_copy_to_host(tensor, wanted[i].data, wanted[i].bytes));
    }
    ck_assert_mem_eq(weight, expected, sizeof weight);
    ck_assert(wide[0] == 0.1 && wide[1] == -1e300);
    ck_assert_int_eq(tracked, (int64_t)1 << 40);
    ck_assert(ints[0] == -1 && ints[1] == 0 && ints[2] == 2147483647);
    ck_assert_mem_eq(bytes, "\0\1\xfe\xff", 4);
    ck_assert(half[0] == 0x3c00 && half[1] == 0xc000);
    ck_assert(brain[0] == 0x3f80 && brain[1] == 0xc000);
    ck_assert_int_eq(shard_tensor_shape(shard_tensors_find(found, "nothing")).dim[0], 0);
    ck_assert_int_eq(shard_tensor_shape(shard_tensors_find(found, "bn.num_batches_tracked")).ndim, 0);
    shard_tensors_destroy(found);
}
END_TEST

START_TEST(test_inspect)
{
    static const char file[] = "\x80\0\0\0\0\0\0\0{\"a\":" TENSOR("BOOL", "[3]", "[0,3]") "}";
    char data[139];
    memset(data, ' ', sizeof data);
    memcpy(data, file, sizeof file - 1);
    const char *path = scratch_path("bool");
    write_file(path, data, sizeof data);
    ck_assert_ptr_null(shard_inspect(path, NULL));
    check_error(SHARD_ERROR_UNSUPPORTED, "*\"a\" has dtype BOOL, which tensors here cannot have");
    ck_assert_ptr_null(shard_inspect(scratch_path("absent"), NULL));
    check_error(SHARD_ERROR_IO, "cannot open */absent: No such file*");
    ck_assert_ptr_null(shard_inspect(scratch_path("."), NULL));
    check_error(SHARD_ERROR_IO, "cannot read */.: it is not a regular file");
    ck_assert_ptr_null(shard_inspect(NULL, NULL));
    check_error(SHARD_ERROR_ARGUMENT, "shard_inspect: path *");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("safetensors");
    TCase *tcase = test_case(suite, "safetensors");
    tcase_add_loop_test(tcase, test_malformed_text, 0, TEXTS);
    tcase_add_test(tcase, test_malformed_length);
    tcase_add_test(tcase, test_other_formats);
    tcase_add_test(tcase, test_deep_nesting);
    tcase_add_test(tcase, test_depth_of_the_package);
    tcase_add_test(tcase, test_memory_of_a_header);
    tcase_add_test(tcase, test_no_memory);
    tcase_add_test(tcase, test_empty_and_too_large);
    tcase_add_test(tcase, test_corpus);
    tcase_add_test(tcase, test_messages_are_one_line);
    tcase_add_test(tcase, test_well_formed);
    tcase_add_test(tcase, test_other_dtypes);
    tcase_add_test(tcase, test_golden_bytes);
    tcase_add_test(tcase, test_names_that_cannot_be);
    tcase_add_test(tcase, test_many_tensors);
    tcase_add_test(tcase, test_sizes_that_overflow);
    tcase_add_test(tcase, test_inspects_what_can_be_loaded);
    tcase_add_test(tcase, test_python_file);
    tcase_add_test(tcase, test_inspect);
    scratch_open();
    int failed = test_run(suite);
    scratch_close();
    return failed;
}
