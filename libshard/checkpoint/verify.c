#include "checkpoint/verify.h"

#include "base/crc64.h"
#include "base/hash.h"
#include "base/math.h"
#include "base/printable.h"
#include "checkpoint/header.h"
#include "checkpoint/ranges.h"
#include "comm/comm.h"

#include <shard/checkpoint.h>

#include <inttypes.h>
#include <stdlib.h>

shard_status shard_verification_start(shard_verification *v, const shard_safetensors *header)
{
    *v = (shard_verification){.header = header, .crc = shard_calloc(2 * (size_t)header->count, sizeof *v->crc)};
    v->cover = v->crc ? v->crc + header->count : NULL;
    return v->crc ? SHARD_OK : shard_last_status();
}

void shard_verification_end(shard_verification *v)
{
    free(v->crc);
    *v = (shard_verification){0};
}

/* ---- sums of what was read ---- */

/* The first rank of the set that has one replica of the tensor, as a rank of the world: this rank less its distance from the
 * first one of each group that the tensor is divided over, as groups are axes of a grid. Where they are not, the boundaries
 * show that the set has not read each byte once. */
static int64_t first_of_set(const shard_tensor *tensor, int64_t own)
{
    const shard_placement *placement = shard_local_placement(tensor);
    const shard_flat_range *range = shard_flat_range_of(tensor);
    int64_t first = own;
    if (placement->kind == SHARD_SPLIT)
        first += shard_group_world_rank(placement->group, 0) - own;
    if (range)
        first += shard_group_world_rank(range->group, 0) - own;
    return first;
}

/* The words of a set are multiplied by a number of its own, so that the sets' errors do not cancel out: the CRC's polynomial
 * is irreducible. The first rank of the set takes away the expected checksum and boundaries. */
void shard_verification_add(shard_verification *v, const shard_entry *entry, const shard_tensor *tensor, const shard_run_sum *sum)
{
    int64_t bytes = entry->end - entry->begin, own = shard_group_rank(shard_world()), first = first_of_set(tensor, own);
    uint64_t crc = shard_run_sum_part(sum, bytes), cover = sum->boundaries;
    if (own == first) {
        crc ^= entry->checksum;
        cover -= shard_run_sum_whole(bytes);
    }
    v->crc[entry - v->header->entries] ^= shard_crc64_shift(crc, 8 * shard_max(first, 0));
    v->cover[entry - v->header->entries] += cover * (shard_hash_element(first, 1) | 1);
}

/* ---- reading as a whole ---- */

/* Reads this rank's share of an entry. */
static uint64_t read_share(const shard_entry *entry, shard_group *world, shard_file *file, int64_t data_start, void *block)
{
    int64_t bytes = entry->end - entry->begin;
    shard_range share = shard_split_range(bytes, shard_group_size(world), shard_group_rank(world));
    uint64_t crc = 0;
    for (int64_t at = 0; at < share.size && shard_last_status() == SHARD_OK; at += SHARD_BLOCK_BYTES)
        shard_file_read(file, block, shard_min(share.size - at, SHARD_BLOCK_BYTES), data_start + entry->begin + share.start + at,
                        &crc);
    return shard_crc64_shift(crc, bytes - share.start - share.size);
}

/* Reads the entries whose cover is not 0, and sets crc to their checksums. Collective. */
static shard_status read_again(shard_verification *v, shard_group *world, shard_file *file, int64_t data_start)
{
    void *block = shard_block_allocate();
    for (int64_t i = 0; i < v->header->count; i++)
        v->crc[i] = v->cover[i] ? read_share(&v->header->entries[i], world, file, data_start, block) : 0;
    shard_block_free(block);
    if (shard_last_status() == SHARD_OK)
        shard_file_check_unwritten(file);
    return shard_checksums_combine(world, v->crc, v->header->count);
}

/* Reads the entries whose cover is not 0, and compares them with what was saved. Collective. */
static shard_status compare_whole(shard_verification *v, shard_group *world, shard_file *file, int64_t data_start)
{
    SHARD_TRY(read_again(v, world, file, data_start));
    for (int64_t i = 0; i < v->header->count; i++)
        if (v->cover[i])
            SHARD_TRY(shard_checksums_compare(file->path, &v->header->entries[i], v->crc[i]));
    return SHARD_OK;
}

/* Ranks have read entry `damaged` otherwise than it was saved. It is read again, for its checksum. */
static shard_status fail_damaged(shard_verification *v, shard_group *world, shard_file *file, int64_t data_start, int64_t damaged)
{
    for (int64_t i = 0; i < v->header->count; i++)
        v->cover[i] = i == damaged;
    SHARD_TRY(compare_whole(v, world, file, data_start));
    return shard_error(SHARD_ERROR_FORMAT,
                       "%s: the data of %s was changed while it was read: its checksum was not the %016" PRIx64
                       " that was saved and that a second reading found; load it again, and see the hosts' logs for errors of "
                       "memory, disk or network",
                       file->path, shard_quoted(v->header->entries[damaged].name), v->header->entries[damaged].checksum);
}

shard_status shard_verification_finish(shard_verification *v, shard_group *world, shard_file *file, int64_t data_start)
{
    int64_t count = v->header->count;
    bool uncovered = false;
    if (count == 0)
        return SHARD_OK;
    SHARD_TRY(shard_checksums_combine(world, v->crc, count));
    SHARD_TRY(shard_group_all_reduce(world, NULL, v->cover, count, SHARD_INT64, SHARD_SUM));
    for (int64_t i = 0; i < count; i++) {
        if (!v->cover[i] && v->crc[i])
            return fail_damaged(v, world, file, data_start, i);
        uncovered |= v->cover[i] != 0;
    }
    return uncovered ? compare_whole(v, world, file, data_start) : SHARD_OK;
}

/* ---- a whole file ---- */

static shard_status verify(shard_file *file, int64_t file_bytes, shard_safetensors *header)
{
    int64_t data_start;
    uint64_t hash;
    shard_verification v;
    SHARD_TRY(shard_header_read(header, file, file_bytes, true, &data_start, &hash));
    if (!header->checksums)
        return shard_error(SHARD_ERROR_UNSUPPORTED, "%s has no checksums: another program or an earlier version wrote it",
                           file->path);
    shard_status status = shard_verification_start(&v, header);
    for (int64_t i = 0; i < header->count && status == SHARD_OK; i++)
        v.cover[i] = 1;
    if (status == SHARD_OK)
        status = compare_whole(&v, NULL, file, data_start);
    shard_verification_end(&v);
    return status;
}

shard_status shard_verify(const char *path)
{
    shard_file file = {0};
    shard_safetensors header = {0};
    int64_t bytes;
    if (!path)
        return shard_null_argument("shard_verify", "path");
    if (shard_file_open(&file, path, &bytes) == SHARD_OK)
        verify(&file, bytes, &header);
    shard_file_close(&file);
    shard_safetensors_free(&header);
    return shard_last_status();
}
