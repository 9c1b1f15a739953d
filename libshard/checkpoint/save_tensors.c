/* The walk of a save over its tensors: contiguous elements come straight from memory, narrow columns after a group has gathered
 * whole rows. */
#include "checkpoint/saving.h"

#include "base/math.h"

/* A replicated tensor is written in ranges of at least this, by one rank each. */
#define RANGE_BYTES ((int64_t)1 << 20)

/* ---- bytes ---- */

/* The place in the file of a tensor's byte. */
static int64_t place_of(const shard_saving *s, int64_t index, int64_t byte)
{
    return s->data_start + s->entries[index].begin + byte;
}

shard_status shard_saving_write(shard_saving *s, int64_t index, const void *values, int64_t bytes, int64_t begin)
{
    uint64_t crc = 0;
    SHARD_TRY(shard_file_write(&s->new.file, values, bytes, place_of(s, index, begin), &crc));
    shard_run_sum_add(&s->sums[index], begin, bytes, crc);
    return SHARD_OK;
}

static void *add_to_snapshot(const shard_saving *s, int64_t index, int64_t begin, int64_t *bytes)
{
    return shard_snapshot_add(s->snapshot, index, begin, place_of(s, index, begin), bytes);
}

/* Writes bytes of the tensor's data from `begin` on, or copies them to the snapshot. */
static shard_status write_data(shard_saving *s, int64_t index, const void *values, int64_t bytes, int64_t begin)
{
    if (!s->snapshot)
        return shard_saving_write(s, index, values, bytes, begin);
    for (int64_t at = 0; at < bytes;) {
        int64_t number = bytes - at;
        void *to = add_to_snapshot(s, index, begin + at, &number);
        if (!to)
            return shard_last_status();
        SHARD_TRY(shard_cpu()->ops->copy_in(shard_cpu(), to, (const char *)values + at, (size_t)number));
        at += number;
    }
    return SHARD_OK;
}

/* ---- another device ---- */

/* Writes what is in the block when its copy has ended. */
static shard_status end_copy(shard_saving *s, struct shard_staged *block)
{
    int64_t bytes = block->bytes;
    block->bytes = 0;
    if (bytes == 0)
        return SHARD_OK;
    SHARD_TRY(s->staging.device->ops->event_synchronize(s->staging.device, block->event));
    return write_data(s, block->index, block->memory, bytes, block->begin);
}

static void end_staging(shard_saving *s)
{
    shard_staging *staging = &s->staging;
    shard_device *device = staging->device;
    for (int i = 0; i < 2 && shard_last_status() == SHARD_OK; i++)
        end_copy(s, &staging->block[staging->next ^ i]);
    if (device && shard_last_status() != SHARD_OK)
        device->ops->synchronize(device); /* a copy may be on its way */
    for (int i = 0; i < 2 && device; i++) {
        device->ops->event_destroy(device, staging->block[i].event);
        if (staging->block[i].memory)
            device->ops->release_host(device, staging->block[i].memory, SHARD_BLOCK_BYTES);
    }
    *staging = (shard_staging){0};
}

static shard_status start_staging(shard_saving *s, shard_device *device)
{
    if (s->staging.device == device)
        return shard_last_status();
    end_staging(s);
    s->staging.device = device;
    for (int i = 0; i < 2 && shard_last_status() == SHARD_OK; i++) {
        s->staging.block[i].event = device->ops->event_create(device);
        s->staging.block[i].memory = device->ops->allocate_host(device, SHARD_BLOCK_BYTES);
    }
    return shard_last_status();
}

/* As write_run, of the memory of another device. The values may be written later, by end_staging at the latest; those of one
 * device are written in the order of the calls. */
static shard_status stage_run(shard_saving *s, int64_t index, int64_t element, int64_t count, int64_t to)
{
    shard_tensor *tensor = shard_tensors_at(s->tensors, index);
    shard_device *device = shard_device_of(tensor);
    int64_t size = (int64_t)shard_dtype_size(tensor->dtype), most = SHARD_BLOCK_BYTES / size;
    const char *values = shard_tensor_values(tensor);
    if (!values || start_staging(s, device) != SHARD_OK)
        return shard_last_status();
    for (int64_t at = 0, number; at < count; at += number) {
        struct shard_staged *block = &s->staging.block[s->staging.next];
        number = shard_min(count - at, most);
        SHARD_TRY(end_copy(s, block));
        SHARD_TRY(device->ops->copy_out_async(device, block->memory, values + (element + at) * size, (size_t)(number * size)));
        SHARD_TRY(device->ops->event_record(device, block->event));
        block->index = index;
        block->begin = (to + at) * size;
        block->bytes = number * size;
        s->staging.next ^= 1;
    }
    return SHARD_OK;
}

/* Writes count elements of the tensor's memory, from `element` on, to element `to` of the whole. */
static shard_status write_run(shard_saving *s, int64_t index, int64_t element, int64_t count, int64_t to)
{
    shard_tensor *tensor = shard_tensors_at(s->tensors, index);
    int64_t size = (int64_t)shard_dtype_size(tensor->dtype);
    if (count == 0)
        return SHARD_OK;
    if (!shard_is_host_memory(tensor))
        return stage_run(s, index, element, count, to);
    const char *values = shard_tensor_values(tensor);
    return values ? write_data(s, index, values + element * size, count * size, to * size) : shard_last_status();
}

/* ---- tensors ---- */

/* Rank 0 writes small tensors, so that tensors that belong together (a batch norm's statistics) come from one rank
 * even if ranks differ; the ranks write ranges of large ones in turn. */
static shard_status write_replicated(shard_saving *s, int64_t index)
{
    int64_t numel = shard_numel(shard_tensors_at(s->tensors, index));
    int64_t ranges = (s->entries[index].end - s->entries[index].begin) / RANGE_BYTES;
    int size = shard_group_size(s->world), rank = shard_group_rank(s->world);
    if (ranges <= 1)
        return rank == 0 ? write_run(s, index, 0, numel, 0) : SHARD_OK;
    ranges = ranges < size ? ranges : size;
    for (int64_t i = 0; i < ranges; i++) {
        shard_range range = shard_split_range(numel, (int)ranges, (int)i);
        if ((s->next + i) % size == rank)
            SHARD_TRY(write_run(s, index, range.start, range.size, range.start));
    }
    s->next += ranges;
    return SHARD_OK;
}

/* Writes whole rows that a group has gathered. */
typedef struct row_writer {
    shard_saving *s;
    int64_t index;
    char *lines;
} row_writer;

/* The rows of a block that this rank writes: for a flat range, all ranks of both groups write some. */
static shard_range rows_of(const shard_saving *s, int64_t index, int64_t rows)
{
    const shard_tensor *tensor = shard_tensors_at(s->tensors, index);
    shard_group *group = shard_local_placement(tensor)->group;
    int writers = shard_group_size(group), rank = shard_group_rank(group);
    if (!shard_flat_range_of(tensor))
        return shard_split_range(rows, writers, rank);
    rank += shard_group_rank(shard_flat_range_of(tensor)->group) * writers;
    writers *= shard_group_size(shard_flat_range_of(tensor)->group);
    return s->written[index] ? shard_split_range(rows, writers, rank) : (shard_range){0, 0};
}

static shard_status write_rows(void *context, const shard_block *block)
{
    row_writer *writer = context;
    const shard_tensor *tensor = shard_tensors_at(writer->s->tensors, writer->index);
    size_t size = shard_dtype_size(tensor->dtype), pitch = (size_t)block->pitch * size;
    shard_range mine = rows_of(writer->s, writer->index, block->rows);
    const char *from = block->data;
    for (int rank = 0; rank < block->ranks; rank++) {
        size_t width = (size_t)block->count[rank] * size;
        SHARD_TRY(shard_cpu()->ops->copy_rows(shard_cpu(), writer->lines + (size_t)block->first[rank] * size, pitch,
                                              from + (size_t)mine.start * width, width, width, (size_t)mine.size));
        from += (size_t)block->rows * width;
    }
    return write_data(writer->s, writer->index, writer->lines, mine.size * (int64_t)pitch,
                      (block->row + mine.start) * (int64_t)pitch);
}

/* Whether local shards have columns so narrow that groups gather whole rows. All ranks must decide the same,
 * whatever the size of their shards. */
static bool is_narrow(const shard_saving *s, int64_t index)
{
    const shard_tensor *tensor = shard_tensors_at(s->tensors, index);
    const shard_placement *placement = shard_local_placement(tensor);
    if (placement->kind != SHARD_SPLIT)
        return false;
    int64_t rows = shard_shape_product(shard_local_shape(tensor), 0, placement->dim);
    int64_t pitch = (s->entries[index].end - s->entries[index].begin) / (rows > 0 ? rows : 1);
    return rows > 1 && pitch < SHARD_WIDE_BYTES * shard_group_size(placement->group) && pitch <= SHARD_BLOCK_BYTES;
}

static shard_status write_narrow(shard_saving *s, int64_t index)
{
    row_writer writer = {.s = s, .index = index, .lines = shard_block_allocate()};
    shard_gather_blocks(shard_tensors_name(s->tensors, index), shard_tensors_at(s->tensors, index), write_rows, &writer);
    shard_block_free(writer.lines);
    return shard_last_status();
}

static shard_status write_extent(shard_saving *s, int64_t index, const shard_extent *extent)
{
    for (int64_t row = 0; row < extent->rows && shard_last_status() == SHARD_OK; row++)
        write_run(s, index, extent->element + row * extent->width, extent->width, extent->start + row * extent->pitch);
    return shard_last_status();
}

static shard_status write_split(shard_saving *s, int64_t index)
{
    if (!s->written[index])
        return SHARD_OK;
    if (is_narrow(s, index))
        return write_narrow(s, index);
    shard_extent extents[SHARD_EXTENTS];
    shard_extents_of(shard_tensors_at(s->tensors, index), extents);
    return write_extent(s, index, extents);
}

static shard_status write_flat_range(shard_saving *s, int64_t index)
{
    if (is_narrow(s, index))
        return write_narrow(s, index);
    shard_extent extents[SHARD_EXTENTS];
    int count = shard_extents_of(shard_tensors_at(s->tensors, index), extents);
    for (int i = 0; i < count && s->written[index] && shard_last_status() == SHARD_OK; i++)
        write_extent(s, index, &extents[i]);
    return shard_last_status();
}

shard_status shard_saving_take(shard_saving *s)
{
    for (int64_t i = 0; i < s->count; i++) {
        const shard_tensor *tensor = shard_tensors_at(s->tensors, i);
        if (shard_flat_range_of(tensor))
            write_flat_range(s, i);
        else if (tensor->placement.kind == SHARD_SPLIT)
            write_split(s, i);
        else
            write_replicated(s, i);
    }
    end_staging(s);
    shard_tensors_destroy(s->tensors);
    s->tensors = NULL;
    return shard_last_status();
}
