#include "checkpoint/ranges.h"

#include "base/printable.h"

#include <inttypes.h>
#include <stdlib.h>

/* The local shard of a tensor of that shape and placement. */
static shard_extent extent_of(const shard_shape *shape, const shard_placement *placement)
{
    int64_t numel = shard_shape_product(shape, 0, shape->ndim);
    shard_extent extent = {.rows = 1, .width = numel, .pitch = numel};
    if (placement->kind != SHARD_SPLIT)
        return extent;
    int64_t inner = shard_shape_product(shape, placement->dim + 1, shape->ndim);
    extent = (shard_extent){.rows = shard_shape_product(shape, 0, placement->dim),
                            .width = shape->dim[placement->dim] * inner,
                            .pitch = placement->whole * inner,
                            .start = placement->start * inner};
    if (extent.width == extent.pitch)
        extent = (shard_extent){.rows = 1, .width = numel, .pitch = numel};
    return extent;
}

int shard_extents_of(const shard_tensor *tensor, shard_extent extents[SHARD_EXTENTS])
{
    const shard_flat_range *range = shard_flat_range_of(tensor);
    extents[0] = extent_of(shard_local_shape(tensor), shard_local_placement(tensor));
    if (!range)
        return 1;
    shard_extent of = extents[0];
    int64_t at = range->start, left = shard_numel(tensor);
    int count = 0;
    while (left > 0 || count == 0) {
        int64_t row = of.width > 0 ? at / of.width : 0, column = at - row * of.width;
        bool rows = column == 0 && left >= of.width && of.width > 0;
        int64_t rest = of.width - column, width = rows ? of.width : left < rest ? left : rest;
        extents[count] = (shard_extent){.rows = rows ? left / of.width : 1,
                                        .width = width,
                                        .pitch = of.pitch,
                                        .start = of.start + row * of.pitch + column,
                                        .element = shard_numel(tensor) - left};
        at += extents[count].rows * width;
        left -= extents[count++].rows * width;
    }
    return count;
}

static bool are_same(const shard_extent *a, const shard_extent *b)
{
    return a->rows == b->rows && a->width == b->width && a->pitch == b->pitch && a->start == b->start;
}

/* Whether two tensors of one whole shape are the same range of it. */
static bool have_same_elements(const shard_tensor *a, const shard_tensor *b)
{
    shard_extent of_a[SHARD_EXTENTS], of_b[SHARD_EXTENTS];
    int count = shard_extents_of(a, of_a);
    bool equal = count == shard_extents_of(b, of_b);
    for (int i = 0; i < count && equal; i++)
        equal = are_same(&of_a[i], &of_b[i]);
    return equal;
}

int64_t shard_first_element(const shard_tensor *from, const shard_tensor *to)
{
    const shard_flat_range *range = shard_flat_range_of(to);
    if (have_same_elements(from, to))
        return 0;
    if (!range || shard_flat_range_of(from))
        return -1;
    shard_extent own = extent_of(&from->shape, &from->placement), shard = extent_of(&range->shape, &range->placement);
    return are_same(&own, &shard) ? range->start : -1;
}

const shard_placement *shard_local_placement(const shard_tensor *tensor)
{
    return shard_flat_range_of(tensor) ? &shard_flat_range_of(tensor)->placement : &tensor->placement;
}

const shard_shape *shard_local_shape(const shard_tensor *tensor)
{
    return shard_flat_range_of(tensor) ? &shard_flat_range_of(tensor)->shape : &tensor->shape;
}

shard_status shard_check_saved(const char *function, const char *name, const shard_tensor *tensor)
{
    if (shard_leaf_of(tensor)->exchanged)
        return shard_error(SHARD_ERROR_ARGUMENT,
                           "%s: %s is an average that has its parameter's values, and the parameter has its own: call "
                           "shard_ema_swap first",
                           function, shard_quoted(name));
    if (shard_local_placement(tensor)->kind == SHARD_PARTIAL)
        return shard_error(SHARD_ERROR_SHAPE,
                           "%s: %s is partial, a summand of the whole value: call shard_reduce_from_group first", function,
                           shard_quoted(name));
    return SHARD_OK;
}

shard_tensors *shard_tensors_kept(const shard_tensors *tensors, bool idle)
{
    shard_tensors *list = tensors ? shard_tensors_create() : NULL;
    for (int64_t i = 0; i < shard_tensors_count(tensors) && list; i++) {
        shard_tensor *tensor = shard_tensors_at(tensors, i);
        if (shard_tensor_is_idle(tensor) && !idle)
            continue;
        shard_tensor *local = shard_local_range_of(tensor);
        if (shard_tensors_add(list, shard_tensors_name(tensors, i), local ? local : tensor) != SHARD_OK) {
            shard_tensors_destroy(list);
            return NULL;
        }
    }
    return list;
}

void shard_tensors_forget_gathered(const shard_tensors *tensors)
{
    for (int64_t i = 0; i < shard_tensors_count(tensors); i++) {
        shard_tensor *tensor = shard_tensors_at(tensors, i);
        if (!shard_local_range_of(tensor))
            continue;
        shard_tensor_count_write(tensor);
        shard_storage_release(tensor->storage);
    }
}

void *shard_block_allocate(void)
{
    return shard_device_allocate(shard_cpu(), SHARD_MEMORY_WORKSPACE, SHARD_BLOCK_BYTES);
}

void shard_block_free(void *block)
{
    shard_device_release(shard_cpu(), SHARD_MEMORY_WORKSPACE, block, SHARD_BLOCK_BYTES);
}

shard_status shard_blocks_allocate(bool converts, void **block, void **converted)
{
    if (!*block && !(*block = shard_block_allocate()))
        return shard_last_status();
    if (converts && !*converted && !(*converted = shard_block_allocate()))
        return shard_last_status();
    return SHARD_OK;
}

bool shard_is_host_memory(const shard_tensor *tensor)
{
    return shard_ops(tensor)->host_memory;
}

const void *shard_values_read(shard_tensor *tensor, int64_t element, int64_t count, void *block)
{
    size_t size = shard_dtype_size(tensor->dtype);
    const char *memory = shard_tensor_values(tensor);
    if (!memory)
        return NULL;
    memory += (size_t)element * size;
    if (shard_is_host_memory(tensor))
        return memory;
    return shard_ops(tensor)->copy_out(shard_device_of(tensor), block, memory, (size_t)count * size) == SHARD_OK ? block : NULL;
}

shard_status shard_values_write(shard_tensor *tensor, char *memory, const void *values, shard_dtype dtype, int64_t count,
                                void *converted)
{
    if (dtype != tensor->dtype) {
        SHARD_TRY(shard_cpu()->ops->cast(shard_cpu(), count, values, dtype, converted, tensor->dtype));
        values = converted;
    }
    return shard_ops(tensor)->copy_in(shard_device_of(tensor), memory, values, (size_t)count * shard_dtype_size(tensor->dtype));
}

shard_status shard_values_copy(const shard_tensor *like, shard_tensor *whole, char *to)
{
    const char *from = shard_tensor_values(whole);
    if (!from)
        return shard_last_status();
    shard_extent extents[SHARD_EXTENTS];
    int count = shard_extents_of(like, extents);
    for (int i = 0; i < count; i++) {
        const shard_extent *extent = &extents[i];
        size_t size = shard_dtype_size(whole->dtype), width = (size_t)extent->width * size;
        SHARD_TRY(shard_ops(whole)->copy_rows(shard_device_of(whole), to + (size_t)extent->element * size, width,
                                              from + (size_t)extent->start * size, (size_t)extent->pitch * size, width,
                                              (size_t)extent->rows));
    }
    return SHARD_OK;
}

shard_range *shard_local_ranges(const char *name, const shard_tensor *tensor)
{
    const shard_placement *placement = shard_local_placement(tensor);
    int size = shard_group_size(placement->group);
    shard_range mine = {placement->start, shard_local_shape(tensor)->dim[placement->dim]};
    shard_range *all = shard_calloc((size_t)size, sizeof *all);
    if (shard_group_exchange(placement->group, &mine, sizeof mine, all) != SHARD_OK) {
        free(all);
        return NULL;
    }
    int64_t covered = 0;
    int rank = 0;
    while (rank < size && all[rank].start == covered)
        covered += all[rank++].size;
    if (rank == size && covered == placement->whole)
        return all;
    rank = rank < size ? rank : size - 1;
    shard_error(SHARD_ERROR_SHAPE,
                "%s: its local shards do not cover the whole of %" PRId64 ": rank %d has %" PRId64 " from %" PRId64
                " on, where %" PRId64 " are covered so far",
                shard_quoted(name), placement->whole, shard_group_world_rank(placement->group, rank), all[rank].size,
                all[rank].start, covered);
    free(all);
    return NULL;
}

bool shard_is_written(const shard_tensor *tensor)
{
    const shard_placement *placement = shard_local_placement(tensor);
    const shard_flat_range *range = shard_flat_range_of(tensor);
    if (placement->kind == SHARD_SPLIT)
        return shard_group_world_rank(placement->group, 0) == 0;
    return !range || shard_group_world_rank(range->group, 0) == 0;
}

/* A rank's answer in the exchange of flat ranges. */
typedef struct flat_part {
    shard_range range;
    int64_t written;
} flat_part;

shard_range *shard_flat_ranges(const char *name, const shard_tensor *tensor, bool *written)
{
    const shard_flat_range *range = shard_flat_range_of(tensor);
    int size = shard_group_size(range->group), rank = 0;
    int64_t covered = 0, whole = shard_shape_product(&range->shape, 0, range->shape.ndim);
    flat_part mine = {{range->start, shard_numel(tensor)}, shard_is_written(tensor)};
    flat_part *parts = shard_calloc((size_t)size, sizeof *parts);
    shard_range *all = shard_calloc((size_t)size, sizeof *all);
    shard_status status = shard_group_exchange(range->group, &mine, sizeof mine, all ? parts : NULL);
    for (int i = 0; i < size && status == SHARD_OK && written; i++)
        *written |= parts[i].written;
    for (; rank < size && status == SHARD_OK; rank++) {
        all[rank] = parts[rank].range;
        if (all[rank].size != 0 && all[rank].start != covered)
            break;
        covered += all[rank].size;
    }
    free(parts);
    if (status == SHARD_OK && rank == size && covered == whole)
        return all;
    free(all);
    if (status == SHARD_OK)
        shard_error(SHARD_ERROR_SHAPE, "%s: its flat ranges do not cover the whole: %" PRId64 " of %" PRId64 " elements",
                    shard_quoted(name), covered, whole);
    return NULL;
}

/* A walk over the blocks of a split tensor. */
typedef struct walk {
    shard_tensor *tensor;
    const shard_placement *placement;
    const shard_range *flat_ranges; /* NULL: the tensor is no flat range */
    int ranks;
    int64_t width, pitch;   /* elements of a row of the local shard, and of the whole */
    int64_t rows, columns;  /* of a block; columns of each rank */
    int64_t *offset, *size; /* [ranks] a rank's first element of a row, and its number of elements */
    int64_t *count, *first; /* [ranks] the same within the current block */
    int64_t *elements;      /* [ranks] elements of each rank in the current block */
    void *mine, *all;
} walk;

/* ranges, flat_ranges: NULL after an error. */
static shard_status start_walk(walk *w, shard_tensor *tensor, const shard_range *ranges, const shard_range *flat_ranges)
{
    const shard_placement *placement = shard_local_placement(tensor);
    const shard_shape *shape = shard_local_shape(tensor);
    int64_t inner = shard_shape_product(shape, placement->dim + 1, shape->ndim);
    int ranks = shard_group_size(placement->group);
    *w = (walk){
        .tensor = tensor, .placement = placement, .flat_ranges = flat_ranges, .ranks = ranks, .pitch = placement->whole * inner};
    w->width = shape->dim[placement->dim] * inner;
    w->offset = shard_calloc(5 * (size_t)ranks, sizeof *w->offset);
    w->all = shard_block_allocate();
    w->mine = shard_is_host_memory(tensor) && !flat_ranges ? w->all : shard_block_allocate();
    if (!w->offset || !w->all || !w->mine || !ranges || (shard_flat_range_of(tensor) && !flat_ranges))
        return shard_last_status();
    w->size = w->offset + ranks;
    w->count = w->size + ranks;
    w->first = w->count + ranks;
    w->elements = w->first + ranks;
    /* Whole rows if they fit; else runs of a row, of the same length for each rank. */
    int64_t most = SHARD_BLOCK_BYTES / (int64_t)shard_dtype_size(tensor->dtype);
    bool fit = w->pitch <= most;
    w->rows = fit && w->pitch > 0 ? most / w->pitch : 1;
    w->columns = fit ? most : most / ranks;
    for (int rank = 0; rank < ranks; rank++) {
        w->offset[rank] = ranges[rank].start * inner;
        w->size[rank] = ranges[rank].size * inner;
    }
    return SHARD_OK;
}

static void end_walk(walk *w)
{
    if (w->mine != w->all)
        shard_block_free(w->mine);
    shard_block_free(w->all);
    free(w->offset);
}

/* Gathers count elements of the local shard, from one on, over the group of the flat range. */
static const void *gather_flat_ranges(walk *w, int64_t from, int64_t count)
{
    shard_group *group = shard_flat_range_of(w->tensor)->group;
    int size = shard_group_size(group), rank = shard_group_rank(group);
    int64_t *counts = shard_calloc((size_t)size, sizeof *counts), before = 0, first = 0;
    if (!counts) {
        shard_group_fail(group);
        return w->mine;
    }
    for (int other = 0; other < size; other++) {
        const shard_range *range = &w->flat_ranges[other];
        int64_t start = range->start > from ? range->start : from, end = range->start + range->size;
        end = end < from + count ? end : from + count;
        counts[other] = end > start ? end - start : 0;
        before += other < rank ? counts[other] : 0;
        first = other == rank ? start - range->start : first;
    }
    char *place = (char *)w->mine + (size_t)before * shard_dtype_size(w->tensor->dtype);
    const void *values = counts[rank] ? shard_values_read(w->tensor, first, counts[rank], place) : place;
    shard_group_all_gather(group, NULL, values, w->mine, counts, w->tensor->dtype);
    free(counts);
    return w->mine;
}

static const void *read_part(walk *w, int64_t from, int64_t count)
{
    if (w->flat_ranges)
        return gather_flat_ranges(w, from, count);
    return count ? shard_values_read(w->tensor, from, count, w->mine) : w->mine;
}

/* Only an error that all ranks of the group have ends the walk, so that no rank waits for others. */
static shard_status gather_block(walk *w, int64_t row, int64_t rows, int64_t column)
{
    shard_group *group = w->placement->group;
    for (int rank = 0; rank < w->ranks; rank++) {
        int64_t left = w->size[rank] - column;
        w->count[rank] = left < 0 ? 0 : left < w->columns ? left : w->columns;
        w->first[rank] = w->offset[rank] + column;
        w->elements[rank] = rows * w->count[rank];
    }
    int64_t mine = w->elements[shard_group_rank(group)];
    const void *values = read_part(w, row * w->width + column, mine);
    return shard_group_all_gather(group, NULL, values, w->all, w->elements, w->tensor->dtype);
}

/* For a flat range, an error of one rank before a block reaches all ranks of both groups in that block: first the
 * group of the flat range, then, through its ranks, the groups of their local shards. */
shard_status shard_gather_blocks(const char *name, shard_tensor *tensor, shard_status (*take)(void *, const shard_block *),
                                 void *context)
{
    const shard_flat_range *flat = shard_flat_range_of(tensor);
    shard_range *flat_ranges = flat ? shard_flat_ranges(name, tensor, NULL) : NULL, *ranges = shard_local_ranges(name, tensor);
    walk w;
    start_walk(&w, tensor, ranges, flat_ranges);
    if (flat)
        shard_agree(flat->group);
    shard_status status = shard_agree(w.placement->group);
    int64_t rows = shard_shape_product(shard_local_shape(tensor), 0, w.placement->dim), columns = 0;
    for (int rank = 0; rank < w.ranks && status == SHARD_OK; rank++)
        columns = w.size[rank] > columns ? w.size[rank] : columns;
    for (int64_t row = 0; row < rows && status == SHARD_OK; row += w.rows)
        for (int64_t column = 0; column < columns && status == SHARD_OK; column += w.columns) {
            int64_t number = rows - row < w.rows ? rows - row : w.rows;
            status = gather_block(&w, row, number, column);
            if (status == SHARD_OK)
                take(context, &(shard_block){w.all, row, number, w.pitch, w.count, w.first, w.ranks});
        }
    end_walk(&w);
    free(flat_ranges);
    free(ranges);
    return shard_last_status();
}
