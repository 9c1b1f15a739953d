/*
 * Scaled dot product attention in tiles: scores of some queries and some keys at a time, with a running maximum and sum.
 *
 * Scores are [keys, queries], so that a query is a lane of the vectors: its maximum and sum need no sums across lanes. Of each
 * block of queries the transposed queries are made once, and keys and values are used as they are (widened where they are
 * of 16 bits, padded where rows are no whole vectors).
 */
#ifdef real

enum { R(LANES) = PRODUCT_VECTOR / sizeof(real) };

/* The memory of a thread. */
typedef struct R(space) {
    real *query, *key, *value, *dy;   /* rows of the block or the tile, where they are not used in place */
    real *query_columns, *dy_columns; /* [in or out, QUERIES] */
    real *scores, *slopes;            /* [KEYS, QUERIES] */
    real *result;                     /* [QUERIES, out_pitch], or the queries' gradient [QUERIES, in_pitch] */
    real *dkey, *dvalue;              /* [keys, in_pitch or out_pitch] */
    real *highest, *center, *factor;  /* [QUERIES]; in the backward lse's two parts and the row terms */
    double *sum;                      /* [QUERIES] */
} R(space);

static size_t R(lay_out)(const job *j, R(space) * p, char *memory)
{
    size_t at = 0, tile = KEYS * QUERIES * sizeof(real), rows = KEYS * sizeof(real);
    size_t in = (size_t)j->in_pitch, out = (size_t)j->out_pitch, widest = in > out ? in : out;
    *p = (R(space)){
        .query = lay(memory, &at, rows * in),
        .key = lay(memory, &at, rows * in),
        .value = lay(memory, &at, rows * out),
        .dy = j->backward ? lay(memory, &at, rows * out) : NULL,
        .query_columns = lay(memory, &at, rows * in),
        .dy_columns = j->backward ? lay(memory, &at, rows * out) : NULL,
        .scores = lay(memory, &at, tile),
        .slopes = j->backward ? lay(memory, &at, tile) : NULL,
        .result = lay(memory, &at, rows * widest),
        .highest = lay(memory, &at, QUERIES * sizeof(real)),
        .center = lay(memory, &at, QUERIES * sizeof(real)),
        .factor = lay(memory, &at, QUERIES * sizeof(real)),
        .sum = lay(memory, &at, QUERIES * sizeof(double)),
    };
    return at;
}

/* `count` rows of `cols` elements of x from row `first` on: in x, or in the buffer with zeros up to the pitch. */
static const real *R(rows_of)(const job *j, const void *x, int64_t first, int64_t count, int64_t cols, int64_t pitch,
                              real *buffer)
{
    if (shard_dtype_size(j->dtype) == sizeof(real) && cols == pitch)
        return (const real *)x + first * cols;
    for (int64_t i = 0; i < count; i++) {
        real *row = buffer + i * pitch;
        const real *from = R(load)(j->dtype, x, (first + i) * cols, cols, row);
        if (from != row)
            memcpy(row, from, (size_t)cols * sizeof *row);
        memset(row + cols, 0, (size_t)(pitch - cols) * sizeof *row);
    }
    return buffer;
}

/* Rows [count, cols] of a pitch, times factors (NULL: 1), rounded into y from row `first` on. */
static void R(store_rows)(const job *j, void *y, int64_t first, int64_t count, int64_t cols, int64_t pitch, real *rows,
                          const real *factor)
{
    for (int64_t i = 0; i < count; i++) {
        real *row = rows + i * pitch, by = factor ? factor[i] : 1;
#pragma omp simd
        for (int64_t k = 0; k < cols; k++)
            row[k] *= by;
        if (shard_dtype_size(j->dtype) == sizeof(real))
            memcpy((real *)y + (first + i) * cols, row, (size_t)cols * sizeof *row);
        else
            R(store)(j->dtype, false, y, (first + i) * cols, cols, row);
    }
}

/* columns [cols, QUERIES] = factor * rows, transposed; zeros for the queries that are not there. */
static void R(make_columns)(int64_t count, int64_t cols, int64_t pitch, const real *rows, real factor, real *columns)
{
    if (count < QUERIES)
        memset(columns, 0, (size_t)(cols * QUERIES) * sizeof *columns);
    R(transpose)(count, cols, rows, pitch, columns, QUERIES);
    if (factor == 1)
        return;
#pragma omp simd
    for (int64_t i = 0; i < cols * QUERIES; i++)
        columns[i] *= factor;
}

/* z [keys, QUERIES] = rows of keys or values times columns of queries or gradients. */
static void R(make_scores)(int64_t keys, int64_t lanes, int64_t depth, const real *rows, int64_t pitch, const real *columns,
                           real *z)
{
    KERNEL(R(product))
    (&(product){.rows = keys,
                .cols = lanes,
                .depth = depth,
                .a = rows,
                .a_row = pitch,
                .a_step = 1,
                .b = columns,
                .b_row = QUERIES,
                .c = z,
                .c_row = QUERIES});
}

/* c [keys, cols] += z times the queries' rows. */
static void R(add_to_keys)(int64_t keys, int64_t queries, int64_t cols, const real *z, const real *rows, real *c)
{
    KERNEL(R(product))
    (&(product){.rows = keys,
                .cols = cols,
                .depth = queries,
                .a = z,
                .a_row = QUERIES,
                .a_step = 1,
                .b = rows,
                .b_row = cols,
                .c = c,
                .c_row = cols,
                .accumulate = true});
}

/* c [queries, cols] = (+ c, if accumulate) z transposed, times the keys' rows. */
static void R(add_to_queries)(int64_t keys, int64_t queries, int64_t cols, const real *z, const real *rows, real *c,
                              bool accumulate)
{
    KERNEL(R(product))
    (&(product){.rows = queries,
                .cols = cols,
                .depth = keys,
                .a = z,
                .a_row = 1,
                .a_step = QUERIES,
                .b = rows,
                .b_row = cols,
                .c = c,
                .c_row = cols,
                .accumulate = accumulate});
}

/* Of the queries from `query` on and the keys from `key` on: -inf where the key is behind the query. */
static void R(mask)(const shard_attention_shape *s, int64_t query, int64_t key, int64_t keys, int64_t lanes, real *z)
{
    for (int64_t j = 0; j < keys && s->causal; j++) {
        int64_t blocked = shard_min(key + j - s->offset - query, lanes);
        for (int64_t i = 0; i < blocked; i++)
            z[j * QUERIES + i] = -INFINITY;
    }
}

/* ---- forward ---- */

/* Moves the centers that the maxima have left far behind, and scales the sums with them. */
static void R(move_centers)(const R(space) * p, const real *max, int64_t queries, int64_t pitch, bool first)
{
    for (int64_t i = 0; i < QUERIES; i++) {
        p->factor[i] = 1;
        if (!(max[i] > p->center[i] + LAG || (p->center[i] == -INFINITY && max[i] > p->center[i])))
            continue;
        p->factor[i] = (real)exp((double)p->center[i] - (double)max[i]);
        p->center[i] = max[i];
        p->sum[i] *= (double)p->factor[i];
        for (int64_t k = 0; k < pitch && !first && i < queries; k++)
            p->result[i * pitch + k] *= p->factor[i];
    }
}

/* z = exp(z - center), and adds to the sums. */
static void R(exponentials)(const R(space) * p, int64_t keys, int64_t queries, int64_t pitch, bool first)
{
    real max[QUERIES], from[QUERIES], part[QUERIES], *z = p->scores;
    for (int64_t i = 0; i < QUERIES; i++)
        max[i] = -INFINITY, part[i] = 0;
    for (int64_t j = 0; j < keys; j++)
#pragma omp simd
        for (int64_t i = 0; i < QUERIES; i++)
            max[i] = z[j * QUERIES + i] > max[i] ? z[j * QUERIES + i] : max[i];
    R(move_centers)(p, max, queries, pitch, first);
    for (int64_t i = 0; i < QUERIES; i++)
        from[i] = p->center[i] == -INFINITY ? 0 : p->center[i];
    for (int64_t j = 0; j < keys; j++)
#pragma omp simd
        for (int64_t i = 0; i < QUERIES; i++) {
            real value = R(exp)(z[j * QUERIES + i] - from[i]);
            z[j * QUERIES + i] = value;
            part[i] += value;
        }
    for (int64_t i = 0; i < QUERIES; i++)
        p->sum[i] += (double)part[i];
}

static void R(forward_block)(const job *j, int64_t task, void *memory)
{
    const shard_attention_shape *s = j->s;
    R(space) p;
    R(lay_out)(j, &p, memory);
    int64_t head = task / j->blocks, query = task % j->blocks * QUERIES, count = shard_min(QUERIES, s->queries - query);
    int64_t row = head * s->queries + query, keys = seen_keys(s, query + count), lanes = shard_round_up(count, R(LANES));
    const real *rows = R(rows_of)(j, j->query, row, count, s->in, j->in_pitch, p.query);
    R(make_columns)(count, s->in, j->in_pitch, rows, (real)s->scale, p.query_columns);
    memset(p.scores, 0, KEYS * QUERIES * sizeof(real)); /* lanes that no product writes */
    for (int64_t i = 0; i < QUERIES; i++)
        p.center[i] = -INFINITY, p.sum[i] = 0;
    for (int64_t key = 0; key < keys; key += KEYS) {
        int64_t n = shard_min(KEYS, keys - key), at = key_head(s, head) * s->keys + key;
        const real *of_key = R(rows_of)(j, j->key, at, n, s->in, j->in_pitch, p.key);
        const real *of_value = R(rows_of)(j, j->value, at, n, s->out, j->out_pitch, p.value);
        R(make_scores)(n, lanes, s->in, of_key, j->in_pitch, p.query_columns, p.scores);
        R(mask)(s, query, key, n, lanes, p.scores);
        R(exponentials)(&p, n, count, j->out_pitch, key == 0);
        R(add_to_queries)(n, count, j->out_pitch, p.scores, of_value, p.result, key > 0);
    }
    if (keys == 0)
        memset(p.result, 0, (size_t)(count * j->out_pitch) * sizeof(real));
    for (int64_t i = 0; i < count; i++) {
        p.factor[i] = keys == 0 ? 0 : (real)(1 / p.sum[i]);
        j->lse[row + i] = (double)p.center[i] + log(p.sum[i]);
    }
    R(store_rows)(j, j->y, row, count, s->out, j->out_pitch, p.result, p.factor);
}

/* ---- backward ---- */

/* The numbers of each query: lse in two parts, so that a difference from it loses nothing, and the row term, the sum of y dy. */
static void R(load_numbers)(const job *j, const R(space) * p, int64_t row, int64_t count, const real *dy)
{
    int64_t out = j->s->out;
    const real *y = R(rows_of)(j, j->y, row, count, out, j->out_pitch, p->value);
    for (int64_t i = 0; i < QUERIES; i++) {
        double lse = i < count ? j->lse[row + i] : 0, term = 0;
        for (int64_t k = 0; k < out && i < count; k += TERM) {
            real sum = 0;
#pragma omp simd reduction(+ : sum)
            for (int64_t l = k; l < shard_min(k + TERM, out); l++)
                sum += y[i * j->out_pitch + l] * dy[i * j->out_pitch + l];
            term += (double)sum;
        }
        p->highest[i] = (real)lse;
        p->center[i] = (real)(lse - (double)p->highest[i]);
        p->factor[i] = (real)term;
    }
}

/* The gradients of one tile; at: its first key's row. */
static void R(backward_tile)(const job *j, const R(space) * p, const block *b, int64_t key, int64_t keys, const real *query,
                             const real *dy)
{
    const shard_attention_shape *s = j->s;
    int64_t lanes = shard_round_up(b->count, R(LANES)), at = b->first_key + key;
    real *z = p->scores, *slope = p->slopes, scale = (real)s->scale;
    const real *of_key = R(rows_of)(j, j->key, at, keys, s->in, j->in_pitch, p->key);
    R(make_scores)(keys, lanes, s->in, of_key, j->in_pitch, p->query_columns, z);
    R(mask)(s, b->query, key, keys, lanes, z);
    for (int64_t k = 0; k < keys; k++)
#pragma omp simd
        for (int64_t i = 0; i < QUERIES; i++)
            z[k * QUERIES + i] = R(exp)(z[k * QUERIES + i] - p->highest[i] - p->center[i]);
    if (j->dvalue)
        R(add_to_keys)(keys, b->count, j->out_pitch, z, dy, p->dvalue + key * j->out_pitch);
    if (!j->dquery && !j->dkey)
        return;
    const real *of_value = R(rows_of)(j, j->value, at, keys, s->out, j->out_pitch, p->value);
    R(make_scores)(keys, lanes, s->out, of_value, j->out_pitch, p->dy_columns, slope);
    for (int64_t k = 0; k < keys; k++)
#pragma omp simd
        for (int64_t i = 0; i < QUERIES; i++)
            slope[k * QUERIES + i] = z[k * QUERIES + i] * (slope[k * QUERIES + i] - p->factor[i]) * scale;
    if (j->dkey)
        R(add_to_keys)(keys, b->count, j->in_pitch, slope, query, p->dkey + key * j->in_pitch);
    if (j->dquery)
        R(add_to_queries)(keys, b->count, j->in_pitch, slope, of_key, p->result, key > 0);
}

static void R(backward_block)(const job *j, const R(space) * p, int64_t head, int64_t query)
{
    const shard_attention_shape *s = j->s;
    const block b = {.query = query, .count = shard_min(QUERIES, s->queries - query), .first_key = key_head(s, head) * s->keys};
    int64_t row = head * s->queries + query, keys = seen_keys(s, query + b.count);
    const real *rows = R(rows_of)(j, j->query, row, b.count, s->in, j->in_pitch, p->query);
    const real *dy = R(rows_of)(j, j->dy, row, b.count, s->out, j->out_pitch, p->dy);
    R(make_columns)(b.count, s->in, j->in_pitch, rows, (real)s->scale, p->query_columns);
    R(make_columns)(b.count, s->out, j->out_pitch, dy, 1, p->dy_columns);
    R(load_numbers)(j, p, row, b.count, dy);
    if (keys == 0)
        memset(p->result, 0, (size_t)(b.count * j->in_pitch) * sizeof(real));
    for (int64_t key = 0; key < keys; key += KEYS)
        R(backward_tile)(j, p, &b, key, shard_min(KEYS, keys - key), rows, dy);
    if (j->dquery)
        R(store_rows)(j, j->dquery, row, b.count, s->in, j->in_pitch, p->result, NULL);
}

/* Where the task's sums of a gradient are: in the gradient itself, if its rows are whole vectors of `real`. */
static real *R(sums_at)(const job *j, int64_t task, void *gradient, void *sums, int64_t cols, int64_t pitch)
{
    if (!gradient)
        return NULL;
    int64_t size = j->s->keys * pitch;
    real *at = sums ? (real *)sums + task * size : (real *)gradient + task * j->s->keys * cols;
    memset(at, 0, (size_t)size * sizeof *at);
    return at;
}

/* The blocks of one key head that a part has: every `parts`-th one. */
static void R(backward_part)(const job *j, int64_t task, void *memory)
{
    const shard_attention_shape *s = j->s;
    R(space) p;
    R(lay_out)(j, &p, memory);
    memset(p.scores, 0, KEYS * QUERIES * sizeof(real)); /* lanes that no product writes */
    memset(p.slopes, 0, KEYS * QUERIES * sizeof(real));
    int64_t group = shard_attention_group(s), key_head = task / j->parts;
    p.dkey = R(sums_at)(j, task, j->dkey, j->key_sums, s->in, j->in_pitch);
    p.dvalue = R(sums_at)(j, task, j->dvalue, j->value_sums, s->out, j->out_pitch);
    for (int64_t i = task % j->parts; i < group * j->blocks; i += j->parts)
        R(backward_block)(j, &p, key_head * group + i / j->blocks, i % j->blocks * QUERIES);
}

/* A key head's gradient from the parts' sums, in order. */
static void R(join_parts)(const job *j, int64_t key_head, void *gradient, void *sums, int64_t cols, int64_t pitch)
{
    int64_t size = j->s->keys * pitch;
    real *first = (real *)sums + key_head * j->parts * size;
    for (int64_t part = 1; part < j->parts; part++)
#pragma omp simd
        for (int64_t i = 0; i < size; i++)
            first[i] += first[part * size + i];
    R(store_rows)(j, gradient, key_head * j->s->keys, j->s->keys, cols, pitch, first, NULL);
}

static void R(join)(const job *j, int64_t key_head, void *memory)
{
    (void)memory;
    if (j->key_sums)
        R(join_parts)(j, key_head, j->dkey, j->key_sums, j->s->in, j->in_pitch);
    if (j->value_sums)
        R(join_parts)(j, key_head, j->dvalue, j->value_sums, j->s->out, j->out_pitch);
}

static size_t R(space_bytes)(const job *j)
{
    R(space) p;
    return R(lay_out)(j, &p, NULL);
}

#else

#include "device/cpu/cpu_tile.h"
#include "device/cpu/kernels/product.h"
#include "device/cpu/kernels/span.h"
#include "device/cpu/kernels/vector_math.h"

#include <math.h>
#include <string.h>

enum {
    QUERIES = 64,    /* of a block: a multiple of all vectors */
    KEYS = 96,       /* of a tile: a multiple of the rows of a product's tile, and more than QUERIES */
    TERM = 256,      /* products that are added up in float */
    TASKS = 16,      /* of a backward, if there are enough blocks: those of few heads are divided into parts */
    UNIT = 64,       /* alignment */
    SMALL = 1 << 18, /* products, which one thread computes */
};
#define LAG 8 /* sums are up to exp(8) times the number of keys and the largest value */

typedef struct job {
    const shard_attention_shape *s;
    shard_dtype dtype;
    bool backward;
    const void *query, *key, *value, *dy;
    void *y, *dquery, *dkey, *dvalue;
    double *lse;
    int64_t in_pitch, out_pitch; /* rounded up to vectors */
    int64_t blocks;              /* of a head's queries */
    int64_t parts;               /* of a key head's blocks */
    void *key_sums, *value_sums; /* of each part; NULL: the gradient is their memory */
} job;

/* Some queries of a head. */
typedef struct block {
    int64_t query, count;
    int64_t first_key; /* the row of the key head's first key */
} block;

/* Lays bytes out behind *at; NULL while `memory` is, to count them. */
static void *lay(char *memory, size_t *at, size_t bytes)
{
    void *part = memory ? memory + *at : NULL;
    *at += (bytes + UNIT - 1) / UNIT * UNIT;
    return part;
}

/* The number of keys that a query before `end` has. */
static int64_t seen_keys(const shard_attention_shape *s, int64_t end)
{
    return s->causal && s->offset < s->keys - end ? end + s->offset : s->keys;
}

/* The key head of a head, both counted over the batch. */
static int64_t key_head(const shard_attention_shape *s, int64_t head)
{
    return head / shard_attention_group(s);
}

static void transpose_float(int64_t rows, int64_t cols, const float *from, int64_t from_row, float *to, int64_t to_row)
{
    shard_cpu_transpose(rows, cols, from, from_row, to, to_row);
}

static void transpose_double(int64_t rows, int64_t cols, const double *from, int64_t from_row, double *to, int64_t to_row)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++)
            to[j * to_row + i] = from[i * from_row + j];
}

#define SELF "attention.c"
#include "device/cpu/kernels/real.h"

typedef void attention_task(const job *, int64_t task, void *memory);

/* Runs tasks on as many threads as there are; each takes the next one. bytes: of a thread's memory. */
static shard_status run_tasks(shard_device *device, const job *j, int64_t tasks, attention_task *run, size_t bytes)
{
    const shard_attention_shape *s = j->s;
    bool small = (double)s->queries * (double)s->keys * (double)(s->in + s->out) * (double)(s->batch * s->heads) < SMALL;
    int64_t threads = small ? 1 : shard_min(shard_cpu_threads(), tasks), next = 0;
    if (tasks == 0)
        return SHARD_OK;
    char *memory = shard_device_allocate(device, SHARD_MEMORY_WORKSPACE, (size_t)threads * bytes);
    if (!memory)
        return shard_last_status();
#pragma omp parallel for schedule(static, 1) num_threads((int)threads) if (threads > 1)
    for (int64_t i = 0; i < threads; i++)
        for (int64_t task; (task = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED)) < tasks;)
            run(j, task, memory + (size_t)i * bytes);
    shard_device_release(device, SHARD_MEMORY_WORKSPACE, memory, (size_t)threads * bytes);
    return SHARD_OK;
}

static size_t real_size(shard_dtype dtype)
{
    return dtype == SHARD_FLOAT64 ? sizeof(double) : sizeof(float);
}

static job job_of(const shard_attention_shape *s, const void *query, const void *key, const void *value, void *y, double *lse,
                  shard_dtype dtype)
{
    int64_t lanes = PRODUCT_VECTOR / (int64_t)real_size(dtype);
    return (job){.s = s,
                 .dtype = dtype,
                 .query = query,
                 .key = key,
                 .value = value,
                 .y = y,
                 .lse = lse,
                 .in_pitch = shard_round_up(s->in, lanes),
                 .out_pitch = shard_round_up(s->out, lanes),
                 .blocks = shard_divide_up(s->queries, QUERIES),
                 .parts = 1};
}

shard_status KERNEL(attention)(shard_device *device, const shard_attention_shape *s, const void *query, const void *key,
                               const void *value, void *y, double *lse, shard_dtype dtype)
{
    job j = job_of(s, query, key, value, y, lse, dtype);
    int64_t tasks = s->batch * s->heads * j.blocks;
    return dtype == SHARD_FLOAT64 ? run_tasks(device, &j, tasks, forward_block_double, space_bytes_double(&j))
                                  : run_tasks(device, &j, tasks, forward_block_float, space_bytes_float(&j));
}

/* Memory for the sums of a gradient, or NULL where they are in the gradient. */
static bool make_sums(shard_device *device, const job *j, int64_t tasks, const void *gradient, int64_t cols, int64_t pitch,
                      void **sums, size_t *bytes)
{
    bool in_place = j->parts == 1 && cols == pitch && shard_dtype_size(j->dtype) == real_size(j->dtype);
    *bytes = (size_t)(tasks * j->s->keys * pitch) * real_size(j->dtype);
    *sums = gradient && !in_place && *bytes ? shard_device_allocate(device, SHARD_MEMORY_WORKSPACE, *bytes) : NULL;
    return *sums || !gradient || in_place || *bytes == 0;
}

shard_status KERNEL(attention_backward)(shard_device *device, const shard_attention_shape *s, const void *query, const void *key,
                                        const void *value, const void *y, const double *lse, const void *dy, void *dquery,
                                        void *dkey, void *dvalue, shard_dtype dtype)
{
    job j = job_of(s, query, key, value, (void *)(uintptr_t)y, (double *)(uintptr_t)lse, dtype);
    int64_t heads = s->batch * s->key_heads, units = shard_attention_group(s) * j.blocks;
    j.backward = true, j.dy = dy, j.dquery = dquery, j.dkey = dkey, j.dvalue = dvalue;
    if (heads == 0)
        return SHARD_OK;
    j.parts = shard_max(1, shard_min(shard_divide_up(TASKS, heads), units));
    int64_t tasks = heads * j.parts;
    size_t key_bytes, value_bytes;
    bool there = make_sums(device, &j, tasks, dkey, s->in, j.in_pitch, &j.key_sums, &key_bytes);
    there = make_sums(device, &j, tasks, dvalue, s->out, j.out_pitch, &j.value_sums, &value_bytes) && there;
    bool wide = dtype == SHARD_FLOAT64;
    shard_status status = there ? run_tasks(device, &j, tasks, wide ? backward_part_double : backward_part_float,
                                            wide ? space_bytes_double(&j) : space_bytes_float(&j))
                                : shard_last_status();
    if (status == SHARD_OK && (j.key_sums || j.value_sums))
        status = run_tasks(device, &j, heads, wide ? join_double : join_float, UNIT);
    shard_device_release(device, SHARD_MEMORY_WORKSPACE, j.key_sums, key_bytes);
    shard_device_release(device, SHARD_MEMORY_WORKSPACE, j.value_sums, value_bytes);
    return status;
}

#endif
