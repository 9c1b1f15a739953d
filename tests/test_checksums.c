/* Checksums of checkpoints: a changed byte is found on every rank and named, wherever it is and however ranks read it. */
#include "support/elements.h"
#include "support/scratch.h"
#include "support/state.h"

#include "base/crc64.h"
#include "checkpoint/saving.h"
#include "tensor/tensor.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { UNIT = 4096 }; /* the header of a small checkpoint */

typedef struct member {
    const char *name;
    shard_dtype dtype;
    shard_shape shape;
    int dim; /* it is split along this; -1: replicated */
} member;

/* In the order of the file's data. */
static const member members[] = {
    {"count", SHARD_INT64, {0, {0}}, -1},          {"rows", SHARD_FLOAT32, {2, {5, 3}}, 0},
    {"columns", SHARD_FLOAT32, {2, {3, 4}}, 1},    {"bias", SHARD_FLOAT32, {1, {5}}, -1},
    {"middle", SHARD_BFLOAT16, {3, {2, 4, 2}}, 1}, {"bytes", SHARD_UINT8, {1, {7}}, 0},
    {"empty", SHARD_FLOAT32, {2, {0, 4}}, 1},
};
enum { MEMBERS = sizeof members / sizeof *members };

static shard_tensors *make_list(shard_group *group, uint64_t seed)
{
    shard_tensors *list = shard_tensors_create();
    for (int i = 0; i < MEMBERS; i++)
        SHARD_SCOPE
        {
            shard_tensor *x = make_part(members[i].shape, members[i].dtype, members[i].dim, group);
            set_elements(x, seed + (uint64_t)i);
            check_ok(shard_tensors_add(list, members[i].name, x));
        }
    return list;
}

static void check_list(const shard_tensors *list, uint64_t seed)
{
    for (int i = 0; i < MEMBERS; i++)
        check_elements(members[i].name, shard_tensors_find(list, members[i].name), seed + (uint64_t)i);
}

static void save_list(shard_group *group, const char *path)
{
    shard_tensors *list = make_list(group, 100);
    shard_metadata *metadata = shard_metadata_create();
    check_ok(shard_metadata_set_integer(metadata, "step", 17));
    check_ok(shard_metadata_set(metadata, "crc64.tensors", "not what it is"));
    check_ok(shard_save(list, path, metadata));
    shard_metadata_destroy(metadata);
    shard_tensors_destroy(list);
}

/* ---- every byte ---- */

static void write_byte(const char *path, size_t at, unsigned char byte)
{
    int file = open(path, O_WRONLY);
    ck_assert_int_ge(file, 0);
    ck_assert_int_eq(pwrite(file, &byte, 1, (off_t)at), 1);
    close(file);
}

/* The pattern of the error for a change of that byte of the file. */
static void expect(char pattern[200], const unsigned char *content, size_t at)
{
    size_t end = 8 + ((size_t)content[0] | (size_t)content[1] << 8);
    snprintf(pattern, 200, "*/bytes.safetensors[: ]*");
    for (int i = 0; i < MEMBERS && at >= end; i++) {
        shard_shape shape = members[i].shape;
        end += (size_t)shard_shape_product(&shape, 0, shape.ndim) * shard_dtype_size(members[i].dtype);
        snprintf(pattern, 200,
                 "*/bytes.safetensors: the data of \"%s\" was changed after it was saved: its checksum is *, and * was saved; *",
                 members[i].name);
    }
}

/* How the tensors of a rank are placed: split over all ranks, over a mesh's model axis, or whole on every rank. */
typedef enum placing { SPLIT, MESH, WHOLE, PLACINGS } placing;

typedef struct byte_case {
    int ranks;
    placing placing;
    bool local;
} byte_case;

static const byte_case byte_cases[] = {{1, SPLIT, false}, {2, SPLIT, false}, {2, WHOLE, false},
                                       {2, SPLIT, true},  {3, SPLIT, false}, {4, MESH, false}};

static void change_bytes(shard_group *world, void *context)
{
    const byte_case *c = context;
    const char *path = scratch_path("bytes.safetensors");
    shard_mesh *mesh = shard_mesh_create(.model = c->placing == MESH ? 2 : shard_group_size(world));
    shard_group *group = c->placing == WHOLE ? NULL : shard_mesh_model_group(mesh);
    bool first = shard_group_rank(world) == 0;
    size_t bytes;
    save_list(group, path);
    unsigned char *content = read_file(path, &bytes);
    shard_tensors *list = make_list(group, 200);
    int cases = 0;
    check_ok(shard_barrier(world));
    /* All of the data; of the header, which each rank reads alone, on more ranks a part. */
    for (size_t at = 0; at < bytes; at += at < UNIT - 31 && c->ranks > 1 ? 31 : 1)
        for (int i = 0; i < 2; i++) {
            char pattern[200];
            if (first)
                write_byte(path, at, (unsigned char)(content[at] ^ (i ? 1 << at % 8 : 0xff)));
            check_ok(shard_barrier(world));
            shard_status status = shard_load(list, path, .local = c->local);
            ck_assert_msg(status == SHARD_ERROR_FORMAT, "byte %zu: status %d", at, (int)status);
            expect(pattern, content, at);
            ck_assert(at >= UNIT || !strstr(shard_last_error(), "the data of"));
            check_error(SHARD_ERROR_FORMAT, pattern);
            if (first && !c->local) {
                ck_assert_int_eq(shard_verify(path), SHARD_ERROR_FORMAT);
                check_error(SHARD_ERROR_FORMAT, pattern);
            }
            if (c->local) /* else no rank reads any more */
                check_ok(shard_barrier(world));
            if (first)
                write_byte(path, at, content[at]);
            cases++;
        }
    check_ok(shard_barrier(world));
    check_ok(shard_load(list, path, .local = c->local));
    check_list(list, 100);
    check_ok(shard_verify(path));
    if (first)
        printf("cases: %d\n", cases);
    free(content);
    shard_tensors_destroy(list);
    shard_mesh_destroy(mesh);
}

START_TEST(test_every_byte)
{
    byte_case c = byte_cases[_i];
    run_job(c.ranks, change_bytes, &c);
}
END_TEST

/* ---- how ranks read ---- */

/* What this process reads. */
static struct {
    const shard_file_calls *system;
    int64_t bytes;
    int64_t flip_at; /* this byte of the file is read with another value; -1: none */
} reads = {.flip_at = -1};

static ssize_t counted_pread(int descriptor, void *data, size_t bytes, off_t offset)
{
    ssize_t done = reads.system->pread(descriptor, data, bytes, offset);
    reads.bytes += done > 0 ? done : 0;
    if (reads.flip_at >= offset && reads.flip_at < offset + done)
        ((char *)data)[reads.flip_at - offset] ^= 4;
    return done;
}

static void watch_reads(void)
{
    static shard_file_calls calls;
    if (!reads.system)
        reads.system = shard_file_calls_used;
    calls = *reads.system;
    calls.pread = counted_pread;
    shard_file_calls_used = &calls;
}

static int64_t read_bytes(shard_tensors *list, const char *path, bool skip)
{
    reads.bytes = 0;
    check_ok(shard_load(list, path, .skip_checksums = skip));
    return reads.bytes;
}

/* A load with checksums reads no byte more than one without. */
static void reads_once(shard_group *world, void *context)
{
    (void)context;
    const char *path = scratch_path("once.safetensors");
    for (int model = 1; model <= shard_group_size(world); model++) {
        if (shard_group_size(world) % model)
            continue;
        shard_mesh *mesh = shard_mesh_create(.model = model);
        shard_group *groups[] = {shard_mesh_model_group(mesh), shard_mesh_data_group(mesh), NULL};
        for (int i = 0; i < 3; i++) {
            shard_tensors *list = make_state(groups[i], 100), *other = make_state(groups[i], 200);
            check_ok(shard_save(list, path, NULL));
            watch_reads();
            ck_assert_int_eq(read_bytes(other, path, false), read_bytes(list, path, true));
            check_state(other, 100);
            shard_tensors_destroy(list);
            shard_tensors_destroy(other);
        }
        shard_mesh_destroy(mesh);
    }
}

START_TEST(test_reads_once)
{
    run_job(_i, reads_once, NULL);
}
END_TEST

static shard_tensors *list_of(const char *name, shard_tensor *x)
{
    shard_tensors *list = shard_tensors_create();
    check_ok(shard_tensors_add(list, name, x));
    return list;
}

/* A load of `list`, of one tensor "x" of float32, finds a change of each of its elements; then the file is sound. */
static void check_finds(shard_group *world, shard_tensors *list, const char *path, int64_t elements)
{
    size_t bytes;
    unsigned char *content = read_file(path, &bytes);
    check_ok(shard_load(list, path, .allow_unexpected = true));
    for (int64_t i = 0; i < elements; i++) {
        size_t at = UNIT + (size_t)i * 4 + (size_t)i % 4;
        check_ok(shard_barrier(world));
        if (shard_group_rank(world) == 0)
            write_byte(path, at, content[at] ^ 16);
        check_ok(shard_barrier(world));
        ck_assert_int_eq(shard_load(list, path, .allow_unexpected = true), SHARD_ERROR_FORMAT);
        check_error(SHARD_ERROR_FORMAT, "*the data of \"x\" was changed after it was saved*");
        check_ok(shard_barrier(world));
        if (shard_group_rank(world) == 0)
            write_byte(path, at, content[at]);
    }
    check_ok(shard_barrier(world));
    check_ok(shard_load(list, path, .allow_unexpected = true));
    free(content);
}

/* Ranks that ask for different tensors, for some columns, or for columns that overlap and leave a gap. */
static void reads_parts(shard_group *world, void *context)
{
    (void)context;
    const char *path = scratch_path("parts.safetensors");
    int rank = shard_group_rank(world), size = shard_group_size(world);
    SHARD_SCOPE
    {
        shard_tensors *saved = shard_tensors_create();
        shard_tensor *x = made_up(SHARD_SHAPE(2, 6), 1, SHARD_FLOAT32), *y = made_up(SHARD_SHAPE(3), 2, SHARD_FLOAT32);
        check_ok(shard_tensors_add(saved, "x", x));
        check_ok(shard_tensors_add(saved, "y", y));
        check_ok(shard_save(saved, path, NULL));
        shard_tensors_destroy(saved);
        const int64_t starts[][2] = {{0, 0}, {0, 2}, {0, 3}, {1, 1}, {3, 0}};
        for (size_t i = 0; i < sizeof starts / sizeof *starts; i++)
            for (int dim = 0; dim < 2; dim++) {
                int64_t start = rank < 2 ? starts[i][rank] : 0, whole = dim ? 6 : 2;
                shard_shape shape = dim ? SHARD_SHAPE(2, 3) : SHARD_SHAPE(1, 6);
                shard_tensor *part = shard_as_split(shard_zeros(shape), dim, world, dim ? start : start % 2, whole);
                shard_tensors *list = list_of("x", part);
                check_finds(world, list, path, 12);
                shard_tensors_destroy(list);
            }
        /* The last rank alone asks for x; the others for y. */
        shard_tensors *list =
            rank == size - 1 ? list_of("x", shard_zeros(SHARD_SHAPE(2, 6))) : list_of("y", shard_zeros(SHARD_SHAPE(3)));
        check_finds(world, list, path, 12);
        shard_tensors_destroy(list);
        /* Nobody asks for x. */
        list = list_of("y", shard_zeros(SHARD_SHAPE(3)));
        check_ok(shard_barrier(world));
        if (rank == 0)
            write_byte(path, UNIT, 99);
        check_ok(shard_barrier(world));
        check_ok(shard_load(list, path, .allow_unexpected = true));
        ck_assert_int_eq(shard_verify(path), SHARD_ERROR_FORMAT);
        check_error(SHARD_ERROR_FORMAT, "*the data of \"x\" was changed after it was saved*");
        shard_tensors_destroy(list);
    }
}

START_TEST(test_reads_parts)
{
    run_job(_i, reads_parts, NULL);
}
END_TEST

/* One rank reads a byte otherwise than the others, of a split tensor on a mesh or a replicated one: all have the error. */
static void reads_otherwise(shard_group *world, void *context)
{
    int odd = *(int *)context;
    const char *path = scratch_path("otherwise.safetensors");
    shard_mesh *mesh = shard_mesh_create(.model = 2);
    save_list(shard_mesh_model_group(mesh), path);
    shard_tensors *list = make_list(shard_mesh_model_group(mesh), 200);
    check_ok(shard_load(list, path)); /* the file is known to all, and its header is not read otherwise */
    watch_reads();
    int found = 0;
    for (int64_t at = UNIT; at < UNIT + 208; at++) {
        reads.flip_at = shard_group_rank(world) == odd ? at : -1;
        shard_status status = shard_load(list, path);
        /* The second reading may be by the rank that errs, or not. */
        if (status != SHARD_OK)
            check_error(SHARD_ERROR_FORMAT, "*/otherwise.safetensors: the data of \"*\" was changed *");
        found += status != SHARD_OK;
    }
    /* Of "rows", "columns", "middle" and "bytes" it reads the half. */
    ck_assert_int_ge(found, 90);
    reads.flip_at = -1;
    check_ok(shard_load(list, path));
    check_list(list, 100);
    shard_tensors_destroy(list);
    shard_mesh_destroy(mesh);
}

START_TEST(test_reads_otherwise)
{
    run_job(4, reads_otherwise, &(int){_i});
}
END_TEST

/* ---- the header ---- */

/* Writes a file of a header and of data; returns its path. */
static const char *write_text(const char *text, const void *data, size_t bytes)
{
    static char file[3000];
    const char *path = scratch_path("text.safetensors");
    size_t length = strlen(text);
    ck_assert_uint_le(8 + length + bytes, sizeof file);
    memset(file, 0, 8);
    file[0] = (char)(length & 0xff);
    file[1] = (char)(length >> 8);
    memcpy(file + 8, text, length);
    memcpy(file + 8 + length, data, bytes);
    write_file(path, file, 8 + length + bytes);
    return path;
}

/* The same with the right checksum of the header, whose digits are zeros in the text. */
static const char *write_sealed(const char *format, const void *data, size_t bytes)
{
    static const char zeros[] = "0000000000000000";
    char text[2000];
    snprintf(text, sizeof text, "%s", format);
    size_t length = strlen(text);
    unsigned char first[8] = {(unsigned char)(length & 0xff), (unsigned char)(length >> 8)};
    char digits[17], *at = strstr(text, zeros);
    ck_assert_ptr_nonnull(at);
    snprintf(digits, sizeof digits, "%016llx", (unsigned long long)shard_crc64(shard_crc64(0, first, 8), text, (int64_t)length));
    memcpy(at, digits, 16);
    return write_text(text, data, bytes);
}

#define TENSORS                                                                                                                  \
    "\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[2,3]" \
    "}}"
#define HEADER "\"crc64.header\":\"0000000000000000\""

/* The checksums of the tensors' data are made where they are %s. */
static void with_checksums(char text[2000], const char *format)
{
    char a[17], b[17];
    snprintf(a, sizeof a, "%016llx", (unsigned long long)shard_crc64(0, "\1\2", 2));
    snprintf(b, sizeof b, "%016llx", (unsigned long long)shard_crc64(0, "\3", 1));
    snprintf(text, 2000, format, a, b);
}

START_TEST(test_headers)
{
    static const struct {
        bool sealed;
        const char *format, *pattern; /* NULL: it is loaded */
    } files[] = {
        {true, "{\"__metadata__\":{" HEADER ",\"crc64.tensors\":\"{\\\"a\\\":\\\"%s\\\",\\\"b\\\":\\\"%s\\\"}\"}," TENSORS, NULL},
        {true,
         "{\"__metadata__\":{\"crc64.tensors\":\"{\\\"a\\\":\\\"%s\\\",\\\"b\\\":\\\"%s\\\"}\",\"x\":\"y\"," HEADER "}," TENSORS
         "   ",
         NULL},
        {false, "{\"__metadata__\":{" HEADER ",\"crc64.tensors\":\"{\\\"a\\\":\\\"%s\\\",\\\"b\\\":\\\"%s\\\"}\"}," TENSORS,
         "*: its header was changed after it was saved: its checksum is *, and 0000000000000000 was saved; load another "
         "checkpoint; if a "
         "program changed it on purpose, leave crc64.header and crc64.tensors out of its metadata, or load it with "
         ".skip_checksums = true, or give it new checksums with shard-checkpoint convert --skip-checksums"},
        {true, "{\"__metadata__\":{" HEADER "}," TENSORS, "*its metadata has crc64.header and no crc64.tensors; *"},
        {false, "{\"__metadata__\":{\"crc64.tensors\":\"{\\\"a\\\":\\\"%s\\\",\\\"b\\\":\\\"%s\\\"}\"}," TENSORS,
         "*its metadata has crc64.tensors and no crc64.header; *"},
        {true, "{\"__metadata__\":{" HEADER ",\"crc64.tensors\":\"{\\\"a\\\":\\\"%s\\\"}\"}," TENSORS,
         "*crc64.tensors has no checksum of \"b\"; *"},
        {true, "{\"__metadata__\":{" HEADER ",\"crc64.tensors\":\"{\\\"a\\\":\\\"%s\\\",\\\"c\\\":\\\"%s\\\"}\"}," TENSORS,
         "*crc64.tensors has \"c\", which is not a tensor of the file"},
        {true, "{\"__metadata__\":{" HEADER ",\"crc64.tensors\":\"{\\\"a\\\":\\\"E5FA2AB8CE3E2E4E\\\"}\"}," TENSORS,
         "*crc64.tensors has \"a\", which is not a checksum"},
        {true, "{\"__metadata__\":{" HEADER ",\"crc64.tensors\":\"{\\\"a\\\":\\\"\\\"}\"}," TENSORS,
         "*crc64.tensors has \"a\", which is not a checksum"},
        {true, "{\"__metadata__\":{" HEADER ",\"crc64.tensors\":\"{\\\"a\\\":1}\"}," TENSORS, "*crc64.tensors at byte 5: *"},
        {true, "{\"__metadata__\":{" HEADER ",\"crc64.tensors\":\"\"}," TENSORS, "*crc64.tensors at byte 0: *"},
        {true, "{\"__metadata__\":{" HEADER ",\"crc64.tensors\":\"{} \"}," TENSORS, "*crc64.tensors has no checksum of \"a\"; *"},
        {true, "{\"__metadata__\":{" HEADER ",\"crc64.tensors\":\"{}x\"}," TENSORS, "*crc64.tensors at byte 2: *"},
        {false, "{\"__metadata__\":{\"crc64.header\": \"0000000000000000\",\"crc64.tensors\":\"{}\"}," TENSORS,
         "*its checksum is not where it was; *"},
        {false, "{\"__metadata__\":{\"crc64.header\":\"000000000000000\",\"crc64.tensors\":\"{}\"}," TENSORS,
         "*its checksum is not where it was; *"},
        {false, "{\"__metadata__\":{\"x\":\"y\"}," TENSORS, NULL},
        {false, "{" TENSORS, NULL},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        SHARD_SCOPE
        {
            char text[2000];
            with_checksums(text, files[i].format);
            const char *path = (files[i].sealed ? write_sealed : write_text)(text, "\1\2\3", 3);
            shard_tensors *list = list_of("a", shard_zeros(SHARD_SHAPE(2), .dtype = SHARD_UINT8));
            check_ok(shard_tensors_add(list, "b", shard_zeros(SHARD_SHAPE(1), .dtype = SHARD_UINT8)));
            shard_metadata *metadata = NULL;
            shard_status status = shard_load_with_metadata(list, path, &metadata);
            ck_assert_msg((status == SHARD_OK) == !files[i].pattern, "file %zu: %s", i, shard_last_error());
            if (files[i].pattern) {
                check_error(SHARD_ERROR_FORMAT, files[i].pattern);
                shard_tensors *inspected = shard_inspect(path, NULL);
                ck_assert_ptr_null(inspected);
                check_error(SHARD_ERROR_FORMAT, files[i].pattern);
                ck_assert_int_eq(shard_verify(path), SHARD_ERROR_FORMAT);
                check_error(SHARD_ERROR_FORMAT, files[i].pattern);
                check_ok(shard_load_with_metadata(list, path, &metadata, .skip_checksums = true));
            }
            ck_assert_ptr_null(shard_metadata_get(metadata, "crc64.header"));
            ck_assert_ptr_null(shard_metadata_get(metadata, "crc64.tensors"));
            ck_assert(!strstr(files[i].format, "\"x\":\"y\"") == !shard_metadata_get(metadata, "x"));
            if (!files[i].pattern && !files[i].sealed) {
                ck_assert_int_eq(shard_verify(path), SHARD_ERROR_UNSUPPORTED);
                check_error(SHARD_ERROR_UNSUPPORTED, "*/text.safetensors has no checksums: *");
            } else if (!files[i].pattern) {
                check_ok(shard_verify(path));
            }
            shard_metadata_destroy(metadata);
            shard_tensors_destroy(list);
        }
}
END_TEST

/* The values are changed by a program that keeps the metadata, and even the header as it is. */
static void stale(shard_group *world, void *context)
{
    (void)context;
    const char *path = scratch_path("stale.safetensors");
    save_list(world, path);
    if (shard_group_rank(world) == 0)
        write_byte(path, UNIT + 8, 3);
    check_ok(shard_barrier(world));
    shard_tensors *list = make_list(world, 200);
    ck_assert_int_eq(shard_load(list, path), SHARD_ERROR_FORMAT);
    check_error(SHARD_ERROR_FORMAT,
                "*the data of \"rows\" was changed*if a program changed it on purpose, leave crc64.header and "
                "crc64.tensors out of its metadata, or load it with .skip_checksums = true, or give it new checksums with "
                "shard-checkpoint convert --skip-checksums");
    shard_metadata *metadata = NULL;
    int64_t step = 0;
    check_ok(shard_load_with_metadata(list, path, &metadata, .skip_checksums = true));
    check_ok(shard_metadata_get_integer(metadata, "step", &step));
    ck_assert_int_eq(step, 17);
    ck_assert_ptr_null(shard_metadata_get(metadata, "crc64.tensors"));
    /* The loaded tensors are saved with new checksums. */
    check_ok(shard_save(list, path, metadata));
    check_ok(shard_load(list, path));
    shard_metadata_destroy(metadata);
    if (shard_group_size(world) > 1) {
        bool skips = shard_group_rank(world) == 1;
        ck_assert_int_eq(shard_load(list, path, .skip_checksums = skips), SHARD_ERROR_MISMATCH);
        check_error(SHARD_ERROR_MISMATCH, "shard_load: .skip_checksums is true on rank 1 and false on rank*");
    }
    shard_tensors_destroy(list);
}

START_TEST(test_stale)
{
    run_job(_i, stale, NULL);
}
END_TEST

/* A tensor that not all ranks write, as if they had read their groups otherwise, is an error on all before the file is there. */
static void leave_a_hole(shard_group *world, void *context)
{
    (void)context;
    const char *path = scratch_path("hole.safetensors");
    shard_tensors *list = make_list(world, 1);
    shard_saving s = {.function = "shard_save", .world = world};
    check_ok(shard_saving_begin(&s, list, path));
    if (shard_group_rank(world) == shard_group_size(world) - 1)
        s.written[1] = false;
    check_ok(shard_saving_take(&s));
    shard_status status = shard_saving_combine(&s);
    shard_saving_end(&s);
    check_error(status, "not all bytes of \"rows\"*");
    check_ok(shard_barrier(world));
    ck_assert_int_eq(scratch_count("hole.safetensors"), 0);
    shard_tensors_destroy(list);
}

START_TEST(test_hole)
{
    run_job(_i, leave_a_hole, NULL);
}
END_TEST

int main(void)
{
    scratch_open();
    Suite *suite = suite_create("checksums");
    TCase *tcase = test_case(suite, "checksums");
    tcase_add_loop_test(tcase, test_every_byte, 0, (int)(sizeof byte_cases / sizeof *byte_cases));
    tcase_add_loop_test(tcase, test_reads_once, 1, 5);
    tcase_add_loop_test(tcase, test_reads_parts, 2, 5);
    tcase_add_loop_test(tcase, test_reads_otherwise, 0, 4);
    tcase_add_test(tcase, test_headers);
    tcase_add_loop_test(tcase, test_stale, 1, 4);
    tcase_add_loop_test(tcase, test_hole, 2, 4);
    int failed = test_run(suite);
    scratch_close();
    return failed;
}
