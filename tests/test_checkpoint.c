/* Saving and loading: the same bytes in the file whatever the ranks and splits, and the
 * same bits in memory again. */
#include "support/elements.h"
#include "support/file_calls.h"
#include "support/host.h"
#include "support/scratch.h"

#include "checkpoint/saving.h"
#include "comm/function.h"
#include "device/device.h"
#include "tensor/tensor.h"

#include <fcntl.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef enum split { NONE, FIRST, MIDDLE, LAST, MIXED } split;
static const char *const split_names[] = {"none", "first", "middle", "last", "mixed"};

typedef struct member {
    const char *name;
    shard_dtype dtype;
    shard_shape shape;
} member;

static const member small[] = {
    {"fc.weight", SHARD_FLOAT32, {2, {11, 7}}},  {"fc.bias", SHARD_FLOAT32, {1, {11}}},
    {"deep", SHARD_BFLOAT16, {4, {3, 5, 6, 2}}}, {"wide", SHARD_FLOAT64, {2, {2, 9}}},
    {"half", SHARD_FLOAT16, {1, {13}}},          {"bn.num_batches_tracked", SHARD_INT64, {0, {0}}},
    {"ints", SHARD_INT32, {2, {5, 1}}},          {"bytes", SHARD_UINT8, {3, {3, 10, 4}}},
    {"empty", SHARD_FLOAT32, {2, {0, 4}}},       {"nothing", SHARD_INT64, {3, {3, 5, 0}}},
    {"größe/名前", SHARD_FLOAT32, {2, {4, 3}}},
};

/* More than one block, rows too wide for one, offsets that are not aligned. */
static const member large[] = {
    {"rows", SHARD_FLOAT32, {2, {1500, 4100}}}, {"wide", SHARD_FLOAT32, {2, {4, 600001}}},
    {"flat", SHARD_BFLOAT16, {1, {1000003}}},   {"deep", SHARD_UINT8, {3, {3, 700001, 3}}},
    {"small", SHARD_FLOAT32, {1, {5}}},
};

typedef struct plan {
    int data, model; /* the mesh */
    split split;
    const member *members;
    int count;
    const char *path;
} plan;

#define SMALL .members = small, .count = (int)(sizeof small / sizeof *small)
#define LARGE .members = large, .count = (int)(sizeof large / sizeof *large)

/* Along which dimension a tensor is split; -1 for not at all. */
static int split_dim(split how, const member *m, int index)
{
    if (how == MIXED)
        how = (split)(index % 4);
    if (how == NONE || m->shape.ndim == 0)
        return -1;
    return how == FIRST ? 0 : how == LAST ? m->shape.ndim - 1 : m->shape.ndim / 2;
}

/* The members, with their values or zeros. */
static shard_tensors *make_list(const plan *p, shard_group *group, bool filled)
{
    shard_tensors *list = shard_tensors_create();
    for (int i = 0; i < p->count; i++)
        SHARD_SCOPE
        {
            shard_tensor *x = make_part(p->members[i].shape, p->members[i].dtype, split_dim(p->split, &p->members[i], i), group);
            if (filled)
                set_elements(x, (uint64_t)i);
            else
                copy_elements(shard_zeros(shard_tensor_shape(x), .dtype = p->members[i].dtype), x);
            check_ok(shard_tensors_add(list, p->members[i].name, x));
        }
    return list;
}

static void check_list(const plan *p, const shard_tensors *list)
{
    for (int i = 0; i < p->count; i++)
        check_elements(p->members[i].name, shard_tensors_find(list, p->members[i].name), (uint64_t)i);
}

static void save(shard_group *world, void *context)
{
    const plan *p = context;
    shard_mesh *mesh = shard_mesh_create(.model = p->model);
    shard_tensors *list = make_list(p, shard_mesh_model_group(mesh), true);
    shard_metadata *metadata = shard_metadata_create();
    check_ok(shard_metadata_set_integer(metadata, "epoch", 3 + shard_group_rank(world))); /* the first rank's counts */
    check_ok(shard_save(list, p->path, metadata));
    shard_metadata_destroy(metadata);
    shard_tensors_destroy(list);
    shard_mesh_destroy(mesh);
}

static void load(shard_group *world, void *context)
{
    (void)world;
    const plan *p = context;
    shard_mesh *mesh = shard_mesh_create(.model = p->model);
    shard_tensors *list = make_list(p, shard_mesh_model_group(mesh), false);
    shard_metadata *metadata = NULL;
    int64_t epoch = 0;
    check_ok(shard_load_with_metadata(list, p->path, &metadata));
    check_list(p, list);
    check_ok(shard_metadata_get_integer(metadata, "epoch", &epoch));
    ck_assert_int_eq(epoch, 3);
    shard_metadata_destroy(metadata);
    shard_tensors_destroy(list);
    shard_mesh_destroy(mesh);
}

static void run_plan(plan p, ranks_body *body)
{
    run_job(p.data * p.model, body, &p);
}

/* Saves as p says; the file must have the reference's bytes. */
static void check_same_file(plan p, const char *reference)
{
    size_t wanted_bytes, bytes;
    p.path = scratch_path("checked.safetensors");
    run_plan(p, save);
    char *wanted = read_file(reference, &wanted_bytes), *got = read_file(p.path, &bytes);
    ck_assert_uint_eq(bytes, wanted_bytes);
    ck_assert_msg(memcmp(got, wanted, bytes) == 0, "%d x %d ranks, split %s: another file", p.data, p.model,
                  split_names[p.split]);
    check_ok(shard_verify(p.path));
    ck_assert_int_eq(scratch_count(".tmp"), 0);
    free(wanted);
    free(got);
    unlink(p.path);
}

static const struct {
    int data, model;
} meshes[] = {{1, 1}, {1, 2}, {2, 1}, {1, 3}, {3, 1}, {1, 4}, {2, 2}, {1, 8}, {2, 4}, {4, 2}, {2, 3}};
#define MESHES ((int)(sizeof meshes / sizeof *meshes))

START_TEST(test_small)
{
    plan p = {.data = 1, .model = 1, SMALL, .path = scratch_path("small.safetensors")};
    run_plan(p, save);
    p.data = meshes[_i].data;
    p.model = meshes[_i].model;
    for (p.split = NONE; p.split <= MIXED; p.split++) {
        check_same_file(p, p.path);
        run_plan(p, load);
    }
    unlink(p.path);
}
END_TEST

START_TEST(test_large)
{
    static const plan plans[] = {
        {1, 2, FIRST, LARGE}, {1, 2, LAST, LARGE}, {1, 3, MIDDLE, LARGE}, {2, 2, LAST, LARGE}, {1, 3, NONE, LARGE},
    };
    plan p = {.data = 1, .model = 1, LARGE, .path = scratch_path("large.safetensors")};
    run_plan(p, save);
    plan other = plans[_i];
    check_same_file(other, p.path);
    other.path = p.path;
    run_plan(other, load);
    unlink(p.path);
}
END_TEST

/* ---- lists and files that do not fit ---- */

static void put(shard_tensors *list, const char *name, shard_tensor *tensor)
{
    check_ok(shard_tensors_add(list, name, tensor));
}

static void misfits(shard_group *world, void *context)
{
    const char *path = context;
    bool odd = shard_group_rank(world) == 1 || shard_group_size(world) == 1;
    shard_tensors *saved = shard_tensors_create(), *list = shard_tensors_create();
    SHARD_SCOPE
    {
        put(saved, "m.a", shard_full(SHARD_SHAPE(2, 3), 1));
        put(saved, "m.b", shard_full(SHARD_SHAPE(4), 2));
        put(saved, "other", shard_full(SHARD_SHAPE(1), 3, .dtype = SHARD_INT64));
        check_ok(shard_save(saved, path, NULL));

        shard_tensor *a = shard_normal(SHARD_SHAPE(2, 3), 5, 0);
        put(list, "a", a);
        shard_load(list, path);
        check_error(SHARD_ERROR_SHAPE,
                    "*does not fit: 1 missing there (\"a\"); 3 not expected here (\"m.a\", \"m.b\", \"other\"); "
                    "options: .prefix .allow_missing .allow_unexpected");
        ck_assert_int_eq(a->leaf->recipe.kind, SHARD_NORMAL); /* nothing was done to it */
        shard_load(list, path, .prefix = "m.");
        check_error(SHARD_ERROR_SHAPE, "*does not fit: 1 not expected here (\"m.b\"); options: .prefix .allow_unexpected");
        check_ok(shard_load(list, path, .allow_missing = true, .allow_unexpected = true));
        ck_assert_double_eq(value_at(a, 5), 5);
        check_ok(shard_load(list, path, .prefix = "m.", .allow_unexpected = true));
        ck_assert_double_eq(value_at(a, 5), 1);

        shard_tensor *b = shard_full(odd ? SHARD_SHAPE(2, 2) : SHARD_SHAPE(4), 7); /* one rank's alone */
        put(list, "b", b);
        check_ok(shard_copy_from_host(a, (const float[]){0, 0, 0, 0, 0, -1}, 24));
        shard_load(list, path, .prefix = "m.");
        check_joint_error(SHARD_ERROR_SHAPE, "*1 of another shape (\"m.b\" is [[]4] there, [[]2, 2] here)");
        ck_assert_double_eq(value_at(a, 5), -1);
        shard_load(saved, "/nowhere/at/all");
        check_error(SHARD_ERROR_IO, "*cannot open /nowhere/at/all: No such file or directory");
    }
    shard_tensors_destroy(saved);
    shard_tensors_destroy(list);
}

START_TEST(test_misfits)
{
    run_job(_i, misfits, (void *)scratch_path("misfits.safetensors"));
}
END_TEST

static void dtypes(shard_group *world, void *context)
{
    const char *path = context;
    const shard_dtype floats[] = {SHARD_FLOAT32, SHARD_FLOAT64, SHARD_BFLOAT16, SHARD_FLOAT16};
    for (int i = 0; i < 16; i++)
        for (int dim = -1; dim < 2; dim++)
            SHARD_SCOPE
            {
                shard_dtype from = floats[i % 4], to = floats[i / 4];
                shard_tensors *saved = shard_tensors_create(), *list = shard_tensors_create();
                shard_tensor *x = make_part(SHARD_SHAPE(5, 9), SHARD_FLOAT64, dim, world);
                fill_made_up(x, 3);
                shard_tensor *rounded = shard_cast(x, from), *y = make_part(SHARD_SHAPE(5, 9), to, dim, world);
                put(saved, "x", rounded);
                put(list, "x", y);
                check_ok(shard_save(saved, path, NULL));
                if (from != to) {
                    shard_load(list, path);
                    check_error(SHARD_ERROR_SHAPE,
                                "*1 of another dtype (\"x\" is *float* there, *float* here); options: .convert");
                }
                check_ok(shard_load(list, path, .convert = true));
                check_close(y, shard_cast(rounded, to), 0);
                shard_tensors_destroy(saved);
                shard_tensors_destroy(list);
            }
    SHARD_SCOPE
    {
        shard_tensors *list = shard_tensors_create(), *saved = shard_tensors_create();
        put(saved, "x", shard_full(SHARD_SHAPE(3), 1, .dtype = SHARD_INT32));
        put(list, "x", shard_full(SHARD_SHAPE(3), 1));
        check_ok(shard_save(saved, path, NULL));
        shard_load(list, path, .convert = true);
        check_error(SHARD_ERROR_SHAPE, "*1 of another dtype (\"x\" is int32 there, float32 here)");
        shard_tensors_destroy(saved);
        shard_tensors_destroy(list);
    }
}

START_TEST(test_dtypes)
{
    run_job(_i, dtypes, (void *)scratch_path("dtypes.safetensors"));
}
END_TEST

/* ---- memory ---- */

/* What was to be drawn at first is not drawn for a load, and is for a save. A tensor
 * split along a middle dimension cannot be drawn at all. */
static void recipes(shard_group *world, void *context)
{
    const char *path = context;
    shard_tensors *saved = shard_tensors_create(), *list = shard_tensors_create();
    SHARD_SCOPE
    {
        shard_tensor *x = shard_full(SHARD_SHAPE(2, 4, 3), 6), *y = make_part(SHARD_SHAPE(2, 4, 3), SHARD_FLOAT32, 1, world);
        shard_tensor *drawn = shard_empty(shard_tensor_shape(y));
        drawn->placement = y->placement;
        shard_make_leaf(drawn)->recipe = (shard_recipe){.kind = SHARD_NORMAL, .b = 1};
        put(saved, "x", x);
        put(list, "x", drawn);
        ck_assert_ptr_null(x->storage->memory);
        check_ok(shard_save(saved, path, NULL));
        uint64_t version = shard_tensor_version(drawn);
        check_ok(shard_load(list, path));
        ck_assert_uint_gt(shard_tensor_version(drawn), version);
        for (int64_t i = 0; i < shard_numel(drawn); i++)
            ck_assert_double_eq(value_at(drawn, i), 6);
    }
    shard_tensors_destroy(saved);
    shard_tensors_destroy(list);
}

START_TEST(test_recipes)
{
    run_job(2, recipes, (void *)scratch_path("recipes.safetensors"));
}
END_TEST

/* Bytes that a save keeps in memory between its beginning and its end, for 2000 tensors. */
static int64_t kept_bytes(const char *path, shard_group *group)
{
    SHARD_FUNCTION("shard_save");
    shard_tensors *list = shard_tensors_create();
    for (int i = 0; i < 2000; i++)
        SHARD_SCOPE
        {
            char name[20];
            snprintf(name, sizeof name, "%d", i);
            put(list, name, make_part(SHARD_SHAPE(2, 5), SHARD_UINT8, 1, group));
        }
    shard_saving saving = {.function = "shard_save", .world = shard_world()};
    size_t before = mallinfo2().uordblks;
    check_ok(shard_saving_begin(&saving, list, path));
    int64_t bytes = (int64_t)(mallinfo2().uordblks - before);
    check_ok(shard_saving_take(&saving));
    shard_file_remove(saving.new.temporary);
    shard_saving_end(&saving);
    shard_tensors_destroy(list);
    return bytes;
}

/* The ranges of other ranks are not kept for all tensors: they would be 64 bytes of each, and more with more ranks. */
static void keeps_no_ranges(shard_group *world, void *context)
{
    kept_bytes(context, world); /* what the first exchanges allocate */
    int64_t of_whole = kept_bytes(context, NULL), of_split = kept_bytes(context, world);
    ck_assert_int_lt(of_split - of_whole, 2000 * 8);
}

START_TEST(test_keeps_no_ranges)
{
    run_job(4, keeps_no_ranges, (void *)scratch_path("ranges.safetensors"));
}
END_TEST

/* Where ranks differ in what they should have alike, small tensors that belong together
 * come from one rank. */
static void statistics(shard_group *world, void *context)
{
    const char *path = context;
    shard_tensors *list = shard_tensors_create();
    SHARD_SCOPE
    {
        shard_tensor *tensors[20];
        for (int i = 0; i < 20; i++) {
            char name[40];
            snprintf(name, sizeof name, "bn%d.running_mean", i);
            tensors[i] = shard_full(SHARD_SHAPE(64), shard_group_rank(world));
            put(list, name, tensors[i]);
        }
        check_ok(shard_save(list, path, NULL));
        check_ok(shard_load(list, path));
        for (int i = 0; i < 20; i++)
            ck_assert_double_eq(value_at(tensors[i], 63), 0);
    }
    shard_tensors_destroy(list);
}

START_TEST(test_statistics)
{
    run_job(3, statistics, (void *)scratch_path("statistics.safetensors"));
}
END_TEST

/* A device whose memory the host cannot touch: its addresses are not the host's. */
#define FAR ((uintptr_t)1 << 62)

static void *to_far(void *memory)
{
    return memory ? (void *)((uintptr_t)memory | FAR) : NULL;
}

static void *from_far(const void *memory)
{
    ck_assert_msg((uintptr_t)memory & FAR, "host memory was given for the device's");
    return (void *)((uintptr_t)memory & ~FAR);
}

static const void *near(const void *memory)
{
    ck_assert_msg(!((uintptr_t)memory & FAR), "the device's memory was given for the host's");
    return memory;
}

static void *far_allocate(shard_device *device, size_t bytes)
{
    (void)device;
    return to_far(shard_cpu()->ops->allocate(shard_cpu(), bytes));
}

static shard_status far_in(shard_device *device, void *to, const void *from, size_t bytes)
{
    (void)device;
    return shard_cpu()->ops->copy_in(shard_cpu(), from_far(to), near(from), bytes);
}

static shard_status far_out(shard_device *device, void *to, const void *from, size_t bytes)
{
    (void)device;
    return shard_cpu()->ops->copy_out(shard_cpu(), (void *)near(to), from_far(from), bytes);
}

/* Copies that are made when something waits for them. */
static struct far_copy {
    void *to;
    const void *from;
    size_t bytes;
} far_copies[4];
static int64_t far_begun, far_ended;

static void end_copies(int64_t until)
{
    for (; far_ended < until; far_ended++) {
        struct far_copy *copy = &far_copies[far_ended % 4];
        check_ok(far_out(NULL, copy->to, copy->from, copy->bytes));
    }
}

static shard_status far_out_async(shard_device *device, void *to, const void *from, size_t bytes)
{
    (void)device;
    ck_assert_int_lt(far_begun - far_ended, 4);
    for (int64_t i = far_ended; i < far_begun; i++)
        ck_assert_msg(far_copies[i % 4].to != to, "memory is written to by two copies at a time");
    far_copies[far_begun++ % 4] = (struct far_copy){to, from, bytes};
    return SHARD_OK;
}

static void *far_allocate_host(shard_device *device, size_t bytes)
{
    (void)device;
    return shard_cpu()->ops->allocate_host(shard_cpu(), bytes);
}

static void far_release_host(shard_device *device, void *memory, size_t bytes)
{
    (void)device;
    shard_cpu()->ops->release_host(shard_cpu(), memory, bytes);
}

static void *far_event_create(shard_device *device)
{
    (void)device;
    return calloc(1, sizeof(int64_t));
}

static void far_event_destroy(shard_device *device, void *event)
{
    (void)device;
    free(event);
}

static shard_status far_event_record(shard_device *device, void *event)
{
    (void)device;
    *(int64_t *)event = far_begun;
    return SHARD_OK;
}

static shard_status far_event_synchronize(shard_device *device, void *event)
{
    (void)device;
    end_copies(*(int64_t *)event);
    return SHARD_OK;
}

static void far_release(shard_device *device, void *memory, size_t bytes)
{
    (void)device;
    end_copies(far_begun);
    shard_cpu()->ops->release(shard_cpu(), from_far(memory), bytes);
}

static shard_status far_rows(shard_device *device, void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                             size_t rows)
{
    (void)device;
    return shard_cpu()->ops->copy_rows(shard_cpu(), from_far(to), to_pitch, from_far(from), from_pitch, width, rows);
}

static shard_device *far_device(void)
{
    static shard_device_ops operations;
    static shard_device device = {.ops = &operations, .name = "far"};
    operations = *shard_cpu()->ops;
    operations.host_memory = false;
    operations.allocate = far_allocate;
    operations.release = far_release;
    operations.copy_in = far_in;
    operations.copy_out = far_out;
    operations.allocate_host = far_allocate_host;
    operations.release_host = far_release_host;
    operations.copy_out_async = far_out_async;
    operations.event_create = far_event_create;
    operations.event_destroy = far_event_destroy;
    operations.event_record = far_event_record;
    operations.event_synchronize = far_event_synchronize;
    operations.copy_rows = far_rows;
    device.memory = shard_cpu()->memory;
    return &device;
}

static void far_away(shard_group *world, void *context)
{
    const char *path = context;
    const shard_shape shapes[] = {SHARD_SHAPE(1100, 4100), SHARD_SHAPE(3, 7), SHARD_SHAPE(2, 300001)};
    for (int i = 0; i < 9; i++)
        SHARD_SCOPE
        {
            shard_tensors *list = shard_tensors_create(), *wide = shard_tensors_create();
            shard_tensor *like = make_part(shapes[i / 3], SHARD_FLOAT32, i % 3 - 1, world);
            shard_tensor *x = shard_empty(shard_tensor_shape(like), .device = far_device());
            x->placement = like->placement;
            put(list, "x", x);
            set_elements(x, 5);
            if (i % 2)
                check_ok(shard_async_save_finish(shard_save_async(list, path, NULL)));
            else
                check_ok(shard_save(list, path, NULL));
            ck_assert_int_eq(far_begun, far_ended);
            shard_tensors *whole = shard_collect_state_dict(list, -1);
            ck_assert_msg(whole != NULL, "%s", shard_last_error());
            check_elements("collected", shard_tensors_at(whole, 0), 5);
            shard_tensors *again = shard_relocate_state_dict(list, whole);
            ck_assert_msg(again != NULL, "%s", shard_last_error());
            check_elements("relocated", shard_tensors_at(again, 0), 5);
            set_elements(x, 6);
            check_ok(shard_load(list, path));
            check_elements("loaded", x, 5);
            shard_tensor *y = shard_empty(shard_tensor_shape(like), .device = far_device(), .dtype = SHARD_FLOAT64);
            y->placement = like->placement;
            put(wide, "x", y);
            check_ok(shard_load(wide, path, .convert = true));
            double *saved = values_of(x), *converted = values_of(y);
            for (int64_t k = 0; k < shard_numel(x); k++)
                ck_assert(converted[k] == saved[k] || (isnan(converted[k]) && isnan(saved[k])));
            free(saved);
            free(converted);
            shard_tensors_destroy(list);
            shard_tensors_destroy(wide);
            shard_tensors_destroy(whole);
            shard_tensors_destroy(again);
        }
}

START_TEST(test_far_device)
{
    run_job(_i, far_away, (void *)scratch_path("far.safetensors"));
}
END_TEST

/* ---- modules ---- */

static shard_module *make_model(shard_split how, shard_group *group)
{
    return shard_nn_sequential(shard_nn_conv2d(3, 4, 3), shard_nn_batch_norm(4), shard_nn_relu(),
                               shard_nn_parallel_linear(4, 7, how, group));
}

static void modules(shard_group *world, void *context)
{
    const char *path = context;
    static const shard_split splits[] = {SHARD_SPLIT_NONE, SHARD_SPLIT_ROW, SHARD_SPLIT_COLUMN};
    for (int i = 0; i < 9; i++) {
        shard_manual_seed(1);
        shard_module *saved = make_model(splits[i % 3], world);
        shard_module *loaded = make_model(splits[i / 3], world);
        check_ok(shard_save_module(saved, path));
        check_ok(shard_load_module(loaded, path));
        shard_tensors *one = shard_state_dict(saved), *other = shard_state_dict(loaded);
        shard_tensors *a = shard_collect_state_dict(one, -1), *b = shard_collect_state_dict(other, -1);
        ck_assert_int_eq(shard_tensors_count(a), 9);
        for (int64_t j = 0; j < shard_tensors_count(a); j++)
            check_close(shard_tensors_at(a, j), shard_tensors_find(b, shard_tensors_name(a, j)), 0);
        shard_tensors_destroy(a);
        shard_tensors_destroy(b);
        shard_tensors_destroy(one);
        shard_tensors_destroy(other);
        shard_module_destroy(saved);
        shard_module_destroy(loaded);
    }
    ck_assert_int_ne(shard_save_module(NULL, path), SHARD_OK);
    check_error(SHARD_ERROR_ARGUMENT, "*NULL*");
}

START_TEST(test_modules)
{
    run_job(_i, modules, (void *)scratch_path("modules.safetensors"));
}
END_TEST

static int direct_reads;

static ssize_t count_direct_reads(const file_call *call)
{
    direct_reads += call->kind == CALL_PREAD && file_calls_are_direct(call->descriptor);
    return CALL_MAKE;
}

/* The page cache is bypassed by reads of what no other rank reads: with .local the others may load the same file, too. */
static void reads_directly(shard_group *world, void *context)
{
    bool first = shard_group_rank(world) == 0, alone = shard_group_size(world) == 1;
    for (int dim = -1; dim <= 0; dim++) {
        shard_tensors *list = shard_tensors_create();
        SHARD_SCOPE
        {
            put(list, "x", make_part(SHARD_SHAPE(1024, 1024), SHARD_FLOAT32, dim, world));
        }
        check_ok(shard_save(list, context, NULL));
        int file = open(context, O_RDONLY | O_DIRECT), possible = file >= 0;
        close(file);
        direct_reads = 0;
        file_calls_watch(count_direct_reads);
        check_ok(shard_load(list, context, .local = dim < 0));
        file_calls_watch(NULL);
        ck_assert_int_eq(direct_reads > 0, possible && (alone || dim == 0));
        shard_tensors_destroy(list);
        check_ok(shard_barrier(world));
        if (first)
            ck_assert_int_eq(remove(context), 0);
    }
}

START_TEST(test_reads_directly)
{
    run_job(_i, reads_directly, (void *)scratch_path("direct.safetensors"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("checkpoint");
    TCase *tcase = test_case(suite, "checkpoint");
    tcase_add_loop_test(tcase, test_small, 0, MESHES);
    tcase_add_loop_test(tcase, test_large, 0, 5);
    tcase_add_loop_test(tcase, test_misfits, 1, 4);
    tcase_add_loop_test(tcase, test_dtypes, 1, 3);
    tcase_add_test(tcase, test_recipes);
    tcase_add_test(tcase, test_keeps_no_ranges);
    tcase_add_test(tcase, test_statistics);
    tcase_add_loop_test(tcase, test_far_device, 1, 4);
    tcase_add_loop_test(tcase, test_modules, 1, 4);
    tcase_add_loop_test(tcase, test_reads_directly, 1, 3);
    scratch_open();
    int failed = test_run(suite);
    scratch_close();
    return failed;
}
