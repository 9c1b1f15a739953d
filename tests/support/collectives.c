#include "support/collectives.h"

#include "support/ranks.h"

#include "base/dtype.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* The value of an element at a world rank: small whole numbers and, for floats, eighths,
 * of both signs. The sums of 16-bit ones need rounding. */
static double value_at(int world_rank, int64_t i, shard_dtype dtype)
{
    uint64_t hash = ((uint64_t)i * 8191 + (uint64_t)world_rank + 1) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
    double whole = (double)(hash % 251);
    if (dtype == SHARD_UINT8)
        return whole;
    return shard_dtype_is_float(dtype) ? (whole - 125) / 8 + (double)(hash >> 20 & 63) : whole - 125;
}

static void put(void *array, int64_t i, shard_dtype dtype, double value)
{
    switch (dtype) {
    case SHARD_FLOAT32:
        ((float *)array)[i] = (float)value / 3;
        break;
    case SHARD_FLOAT64:
        ((double *)array)[i] = value / 3;
        break;
    case SHARD_BFLOAT16:
        ((uint16_t *)array)[i] = shard_float_to_bfloat16((float)value);
        break;
    case SHARD_FLOAT16:
        ((uint16_t *)array)[i] = shard_float_to_float16((float)value);
        break;
    case SHARD_INT64:
        ((int64_t *)array)[i] = (int64_t)value * 1000000007;
        break;
    case SHARD_INT32:
        ((int32_t *)array)[i] = (int32_t)value * 10007;
        break;
    default:
        ((uint8_t *)array)[i] = (uint8_t)value;
    }
}

/* What the rank holds: elements [start, start + count) of its array. */
static void fill(void *array, int64_t start, int64_t count, int world_rank, shard_dtype dtype)
{
    for (int64_t i = 0; i < count; i++)
        put(array, i, dtype, value_at(world_rank, start + i, dtype));
}

static float half_to_float(uint16_t half, shard_dtype dtype)
{
    return dtype == SHARD_BFLOAT16 ? shard_bfloat16_to_float(half) : shard_float16_to_float(half);
}

#define COMBINE(type)                                                                                                            \
    do {                                                                                                                         \
        type a_ = *(type *)sum, b_ = *(const type *)next;                                                                        \
        *(type *)sum = (type)(op == SHARD_SUM ? a_ + b_ : op == SHARD_MAX ? (a_ > b_ ? a_ : b_) : (a_ < b_ ? a_ : b_));          \
    } while (0)

/* sum op= next, one element; sum of a 16-bit type is a float. */
static void combine(void *sum, const void *next, shard_dtype dtype, shard_reduce_op op)
{
    float wide;
    switch (dtype) {
    case SHARD_FLOAT64:
        COMBINE(double);
        break;
    case SHARD_INT64:
        COMBINE(int64_t);
        break;
    case SHARD_INT32:
        COMBINE(int32_t);
        break;
    case SHARD_UINT8:
        COMBINE(uint8_t);
        break;
    case SHARD_BFLOAT16:
    case SHARD_FLOAT16:
        wide = half_to_float(*(const uint16_t *)next, dtype);
        next = &wide; /* fall through */
    default:
        COMBINE(float);
    }
}

/* Element i of the reduction over the group, by adding in rank order. */
static void expect(const shard_group *group, int64_t i, shard_dtype dtype, shard_reduce_op op, void *out)
{
    union {
        float wide;
        uint16_t half;
        double most;
        int64_t integer;
    } sum, next;
    for (int member = 0; member < shard_group_size(group); member++) {
        void *slot = member ? (void *)&next : (void *)&sum;
        put(slot, 0, dtype, value_at(shard_group_world_rank(group, member), i, dtype));
        if (member == 0 && shard_dtype_size(dtype) == 2)
            sum.wide = half_to_float(sum.half, dtype);
        if (member)
            combine(&sum, &next, dtype, op);
    }
    if (dtype == SHARD_BFLOAT16)
        *(uint16_t *)out = shard_float_to_bfloat16(sum.wide);
    else if (dtype == SHARD_FLOAT16)
        *(uint16_t *)out = shard_float_to_float16(sum.wide);
    else
        memcpy(out, &sum, shard_dtype_size(dtype));
}

static bool close_to(const void *a, const void *b, shard_dtype dtype)
{
    if (dtype == SHARD_FLOAT32)
        return fabsf(*(const float *)a - *(const float *)b) <= 1e-5f * (1 + fabsf(*(const float *)b));
    if (dtype == SHARD_FLOAT64)
        return fabs(*(const double *)a - *(const double *)b) <= 1e-13 * (1 + fabs(*(const double *)b));
    return memcmp(a, b, shard_dtype_size(dtype)) == 0;
}

/* array holds elements [start, start + count) of the reduction. */
static void check_reduction(const shard_group *group, const void *array, int64_t start, int64_t count, shard_dtype dtype,
                            shard_reduce_op op, sum_order order)
{
    size_t size = shard_dtype_size(dtype);
    for (int64_t i = 0; i < count; i++) {
        uint64_t right = 0;
        const char *element = (const char *)array + (size_t)i * size;
        expect(group, start + i, dtype, op, &right);
        bool same =
            order == RANK_ORDER || op != SHARD_SUM ? memcmp(element, &right, size) == 0 : close_to(element, &right, dtype);
        if (!same)
            ck_abort_msg("element %lld of %lld %s (operation %d over %d ranks) is wrong", (long long)i, (long long)count,
                         shard_dtype_name(dtype), (int)op, shard_group_size(group));
    }
}

/* Elements with a guard behind them that check_guard finds touched. */
static void *make_array(int64_t count, shard_dtype dtype)
{
    size_t bytes = (size_t)count * shard_dtype_size(dtype);
    char *array = malloc(bytes + 64);
    ck_assert_ptr_nonnull(array);
    memset(array, 0x5a, bytes + 64);
    return array;
}

static void free_array(void *array, int64_t count, shard_dtype dtype)
{
    const char *guard = (const char *)array + (size_t)count * shard_dtype_size(dtype);
    for (int i = 0; i < 64; i++)
        ck_assert_msg(guard[i] == 0x5a, "byte %d behind %lld %s was overwritten", i, (long long)count, shard_dtype_name(dtype));
    free(array);
}

/* ---- where the data is: on SHARD_DEVICE ---- */

/* NULL: in the host's memory. */
static shard_device *data_device(void)
{
    shard_device *device = shard_default_device();
    ck_assert_ptr_nonnull(device);
    return device->ops->host_memory ? NULL : device;
}

static size_t bytes_of(int64_t count, shard_dtype dtype)
{
    return (size_t)count * shard_dtype_size(dtype) + 64;
}

/* The array where a collective is to find it, its guard behind it. */
static void *move_there(void *array, int64_t count, shard_dtype dtype)
{
    shard_device *device = data_device();
    if (!device)
        return array;
    void *there = device->ops->allocate(device, bytes_of(count, dtype));
    ck_assert_ptr_nonnull(there);
    check_ok(device->ops->copy_in(device, there, array, bytes_of(count, dtype)));
    return there;
}

static void move_back(void *array, void *there, int64_t count, shard_dtype dtype)
{
    shard_device *device = data_device();
    if (!device)
        return;
    check_ok(device->ops->copy_out(device, array, there, bytes_of(count, dtype)));
    device->ops->release(device, there, bytes_of(count, dtype));
}

/* ---- the collectives ---- */

static void all_reduce_once(shard_group *group, int64_t count, shard_dtype dtype, shard_reduce_op op, sum_order order)
{
    int rank = shard_group_world_rank(group, shard_group_rank(group));
    void *data = make_array(count, dtype);
    fill(data, 0, count, rank, dtype);
    void *there = move_there(data, count, dtype);
    check_ok(shard_group_all_reduce(group, data_device(), there, count, dtype, op));
    move_back(data, there, count, dtype);
    check_reduction(group, data, 0, count, dtype, op, order);
    free_array(data, count, dtype);
}

/* Sizes around what fits into a fingerprint, what each member adds up alone, and more. */
static const int64_t small_counts[] = {0, 1, 2, 27, 28, 54, 55, 108, 109, 216, 217, 1000, 4097};
#define SMALL_COUNTS ((int)(sizeof small_counts / sizeof *small_counts))

void check_all_reduce(shard_group *group, sum_order order)
{
    for (shard_dtype dtype = 0; dtype < SHARD_DTYPES; dtype++)
        for (shard_reduce_op op = SHARD_SUM; op <= SHARD_MIN; op++)
            for (int i = 0; i < SMALL_COUNTS; i++)
                all_reduce_once(group, small_counts[i], dtype, op, order);
}

void check_all_reduce_start(shard_group *group, sum_order order)
{
    enum { REQUESTS = 4 };
    static const int64_t counts[REQUESTS] = {3, 5000, 0, 70001};
    for (shard_dtype dtype = 0; dtype < SHARD_DTYPES; dtype++) {
        void *data[REQUESTS], *there[REQUESTS];
        shard_request *requests[REQUESTS];
        int rank = shard_group_world_rank(group, shard_group_rank(group));
        for (int i = 0; i < REQUESTS; i++) {
            data[i] = make_array(counts[i], dtype);
            fill(data[i], 0, counts[i], rank, dtype);
            there[i] = move_there(data[i], counts[i], dtype);
            requests[i] = start_all_reduce(group, data_device(), there[i], counts[i], dtype, SHARD_SUM);
        }
        check_ok(shard_barrier(group));
        for (int i = 0; i < REQUESTS; i++) {
            check_ok(shard_group_wait(group, data_device(), requests[i]));
            move_back(data[i], there[i], counts[i], dtype);
            check_reduction(group, data[i], 0, counts[i], dtype, SHARD_SUM, order);
            free_array(data[i], counts[i], dtype);
        }
    }
}

/* Pieces of a total: even, all at one member, every other empty, ascending; their sum. */
#define LAYOUTS 4
static int64_t lay_out(int layout, int64_t total, int size, int64_t *counts)
{
    int64_t sum = 0;
    for (int member = 0; member < size; member++) {
        int64_t even = shard_split_range(total, size, member).size;
        counts[member] = layout == 0   ? even
                         : layout == 1 ? (member == size / 2) * total
                         : layout == 2 ? (member % 2) * even
                                       : member * even / 2;
        sum += counts[member];
    }
    return sum;
}

static int64_t start_of(const int64_t *counts, int member)
{
    int64_t start = 0;
    for (int i = 0; i < member; i++)
        start += counts[i];
    return start;
}

/* Every other gather and reduce-scatter is started and waited for. */
static bool next_is_started(void)
{
    static bool started;
    return started = !started;
}

static void all_gather_once(shard_group *group, const int64_t *counts, int64_t sum, shard_dtype dtype, bool inside)
{
    int rank = shard_group_rank(group), size = shard_group_size(group);
    size_t element = shard_dtype_size(dtype);
    char *all = make_array(sum, dtype), *right = make_array(sum, dtype), *mine = make_array(counts[rank], dtype);
    size_t own = (size_t)start_of(counts, rank) * element;
    fill(inside ? all + own : mine, 0, counts[rank], shard_group_world_rank(group, rank), dtype);
    char *all_there = move_there(all, sum, dtype), *mine_there = move_there(mine, counts[rank], dtype);
    const void *from = inside ? all_there + own : mine_there;
    if (next_is_started()) {
        const shard_collective call = {.kind = SHARD_COLLECTIVE_ALL_GATHER,
                                       .send = from,
                                       .receive = all_there,
                                       .counts = counts,
                                       .dtype = dtype,
                                       .device = data_device()};
        check_ok(shard_group_wait(group, data_device(), shard_group_post(group, &call)));
    } else {
        check_ok(shard_group_all_gather(group, data_device(), from, all_there, counts, dtype));
    }
    move_back(all, all_there, sum, dtype);
    move_back(mine, mine_there, counts[rank], dtype);
    for (int member = 0; member < size; member++)
        fill(right + (size_t)start_of(counts, member) * element, 0, counts[member], shard_group_world_rank(group, member), dtype);
    ck_assert_msg(memcmp(all, right, (size_t)sum * element) == 0, "all_gather of %lld %s over %d ranks is wrong", (long long)sum,
                  shard_dtype_name(dtype), size);
    free_array(all, sum, dtype);
    free_array(right, sum, dtype);
    free_array(mine, counts[rank], dtype);
}

static void reduce_scatter_once(shard_group *group, const int64_t *counts, int64_t sum, shard_dtype dtype, shard_reduce_op op,
                                bool inside, sum_order order)
{
    int rank = shard_group_rank(group);
    int64_t start = start_of(counts, rank);
    char *all = make_array(sum, dtype), *mine = make_array(counts[rank], dtype);
    size_t own = (size_t)start * shard_dtype_size(dtype);
    fill(all, 0, sum, shard_group_world_rank(group, rank), dtype);
    char *all_there = move_there(all, sum, dtype), *mine_there = move_there(mine, counts[rank], dtype);
    void *to = !inside ? mine_there : counts[rank] ? all_there + own : all_there; /* an empty piece lies anywhere */
    if (next_is_started()) {
        const shard_collective call = {.kind = SHARD_COLLECTIVE_REDUCE_SCATTER,
                                       .send = all_there,
                                       .receive = to,
                                       .counts = counts,
                                       .dtype = dtype,
                                       .op = op,
                                       .device = data_device()};
        check_ok(shard_group_wait(group, data_device(), shard_group_post(group, &call)));
    } else {
        check_ok(shard_group_reduce_scatter(group, data_device(), all_there, to, counts, dtype, op));
    }
    move_back(all, all_there, sum, dtype);
    move_back(mine, mine_there, counts[rank], dtype);
    check_reduction(group, inside ? all + own : mine, start, counts[rank], dtype, op, order);
    free_array(all, sum, dtype);
    free_array(mine, counts[rank], dtype);
}

void check_all_gather(shard_group *group)
{
    int64_t counts[64];
    for (shard_dtype dtype = 0; dtype < SHARD_DTYPES; dtype++)
        for (int layout = 0; layout < LAYOUTS; layout++)
            for (int i = 0; i < SMALL_COUNTS; i++) {
                int64_t sum = lay_out(layout, small_counts[i], shard_group_size(group), counts);
                all_gather_once(group, counts, sum, dtype, i % 2);
            }
}

void check_reduce_scatter(shard_group *group, sum_order order)
{
    int64_t counts[64];
    for (shard_dtype dtype = 0; dtype < SHARD_DTYPES; dtype++)
        for (shard_reduce_op op = SHARD_SUM; op <= SHARD_MIN; op++)
            for (int layout = 0; layout < LAYOUTS; layout++)
                for (int i = 0; i < SMALL_COUNTS; i++) {
                    int64_t sum = lay_out(layout, small_counts[i], shard_group_size(group), counts);
                    reduce_scatter_once(group, counts, sum, dtype, op, i % 2, order);
                }
}

static void broadcast_once(shard_group *group, int64_t count, shard_dtype dtype, int root)
{
    int rank = shard_group_rank(group);
    char *data = make_array(count, dtype), *right = make_array(count, dtype);
    fill(right, 0, count, shard_group_world_rank(group, root), dtype);
    if (rank == root)
        memcpy(data, right, (size_t)count * shard_dtype_size(dtype));
    void *there = move_there(data, count, dtype);
    check_ok(shard_group_broadcast(group, data_device(), there, count, dtype, root));
    move_back(data, there, count, dtype);
    ck_assert_msg(memcmp(data, right, (size_t)count * shard_dtype_size(dtype)) == 0, "broadcast of %lld %s from rank %d is wrong",
                  (long long)count, shard_dtype_name(dtype), root);
    free_array(data, count, dtype);
    free_array(right, count, dtype);
}

void check_broadcast(shard_group *group)
{
    for (shard_dtype dtype = 0; dtype < SHARD_DTYPES; dtype++)
        for (int root = 0; root < shard_group_size(group); root++)
            for (int i = 0; i < SMALL_COUNTS; i++)
                broadcast_once(group, small_counts[i], dtype, root);
}

void check_exchange(shard_group *group)
{
    int rank = shard_group_rank(group), size = shard_group_size(group);
    static const size_t lengths[] = {0, 1, 7, 216, 217, SHARD_EXCHANGE_BYTES};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        char mine[SHARD_EXCHANGE_BYTES], *all = malloc((size_t)size * SHARD_EXCHANGE_BYTES);
        ck_assert_ptr_nonnull(all);
        memset(mine, 'a' + rank, sizeof mine);
        check_ok(shard_group_exchange(group, mine, lengths[i], all));
        for (size_t byte = 0; byte < (size_t)size * lengths[i]; byte++)
            ck_assert_int_eq(all[byte], 'a' + (char)(byte / lengths[i]));
        free(all);
    }
}

void check_sizes(shard_group *group, int64_t count, sum_order order)
{
    int64_t counts[64];
    int size = shard_group_size(group);
    for (shard_dtype dtype = 0; dtype < SHARD_DTYPES; dtype++) {
        all_reduce_once(group, count, dtype, (shard_reduce_op)(dtype % 3), order);
        broadcast_once(group, count, dtype, size - 1);
        for (int layout = 0; layout < LAYOUTS; layout++) {
            int64_t sum = lay_out(layout, count, size, counts);
            all_gather_once(group, counts, sum, dtype, layout % 2);
            reduce_scatter_once(group, counts, sum, dtype, SHARD_SUM, layout % 2, order);
        }
    }
}

static void check_grid(shard_group *world, int rows, int columns, sum_order order)
{
    int rank = shard_group_rank(world), members[64];
    for (int i = 0; i < columns; i++)
        members[i] = rank / columns * columns + i;
    shard_group *row = shard_group_make(world, members, columns);
    ck_assert_msg(row, "no row of %d x %d: %s", rows, columns, shard_last_error());
    for (int i = 0; i < rows; i++)
        members[i] = rank % columns + i * columns;
    shard_group *column = shard_group_make(world, members, rows);
    ck_assert_msg(column, "no column of %d x %d: %s", rows, columns, shard_last_error());
    ck_assert_int_eq(shard_group_size(row), columns);
    ck_assert_int_eq(shard_group_rank(row), rank % columns);
    ck_assert_int_eq(shard_group_size(column), rows);
    ck_assert_int_eq(shard_group_rank(column), rank / columns);
    for (int i = 0; i < rows; i++)
        ck_assert_int_eq(shard_group_world_rank(column, i), shard_group_world_rank(world, rank % columns + i * columns));
    for (int i = 0; i < 3; i++) {
        all_reduce_once(row, 3000, SHARD_FLOAT32, SHARD_SUM, order);
        all_reduce_once(column, 7, SHARD_INT64, SHARD_MAX, order);
        all_reduce_once(world, 20000, SHARD_BFLOAT16, SHARD_SUM, order);
        broadcast_once(column, 100000, SHARD_UINT8, rows - 1);
    }
    shard_group_free(column);
    shard_group_free(row);
}

void check_grids(shard_group *world, sum_order order)
{
    int size = shard_group_size(world);
    for (int rows = 1; rows <= size; rows++)
        if (size % rows == 0)
            check_grid(world, rows, size / rows, order);
}

/* Of a process that is no rank. */
static void stop_for(const int32_t *processes, double seconds)
{
    usleep(300 * 1000); /* until rank 0 waits */
    for (int i = 0; i < 2; i++)
        kill(processes[i], SIGSTOP);
    usleep((useconds_t)(seconds * 1e6));
    for (int i = 0; i < 2; i++)
        kill(processes[i], SIGCONT);
}

/* Rank 1 still works for two seconds when both go on. */
void check_stopped_job(shard_group *world)
{
    int32_t own = (int32_t)getpid(), processes[2];
    check_ok(shard_group_exchange(world, &own, sizeof own, processes));
    shard_process.timeout = 5 * deadline_multiplier();
    pid_t child = shard_group_rank(world) == 1 ? fork() : -1;
    if (child == 0) {
        stop_for(processes, shard_process.timeout + 2);
        _exit(0);
    }
    for (int slice = 0; child > 0 && slice < 25; slice++) /* while it is stopped one sleep passes, not the others */
        usleep(100 * 1000);
    if (child > 0)
        ck_assert_int_eq(waitpid(child, NULL, 0), child);
    check_ok(shard_barrier(world));
}
