/*
 * Products of matrices whose rows begin at no multiple of 16 bytes, or end at none. Kernels for tensor cores move 16 bytes at a
 * time, and those that take other rows are several times slower. Where a product is large for its matrices
 *   - rows that begin elsewhere go through scratch memory in which they are aligned;
 *   - of rows that end elsewhere the last elements are a product of their own. An H100 multiplies [2048, 2048] by
 *     [125001, 2048]^T in bfloat16, all rows aligned, at 100 TFLOP/s, and by 125000 rows at 770.
 */
#include "device/cuda/cuda_blas.h"

/*
 * When that pays. An H100 that multiplies such rows at 250 TFLOP/s, not 700, loses 2.6e-15 s a flop; a byte that is read
 * or written at 3 TB/s costs 0.33e-12 s, as much as 130 flop lose. Twice as many are asked for, and so many that they
 * lose more than the launches of three copies (about 10 us). Scratch memory is bounded: it is allocated in
 * addition to all other memory.
 */
#define LEAST_FLOP 0x1p32
#define FLOP_EACH_BYTE 256
#define MOST_SCRATCH ((size_t)256 << 20)

enum { A, B, C, MATRICES };

/* A matrix as it is stored, and its rows in scratch memory. */
typedef struct stored {
    char *memory;
    size_t rows, width, pitch; /* bytes */
    size_t aligned;            /* the pitch of its copy; 0: it is taken as it is */
    size_t start;              /* of its copy */
} stored;

static double flop_of(const shard_cuda_product *p)
{
    return 2.0 * (double)p->m * (double)p->n * (double)p->k;
}

/* Whether `bytes` more are read and written for a faster kernel. */
static bool pays(const shard_cuda_product *p, double bytes)
{
    return flop_of(p) >= LEAST_FLOP && flop_of(p) >= FLOP_EACH_BYTE * bytes;
}

static stored store(const void *memory, int64_t rows, int64_t cols, int64_t ld, size_t size)
{
    stored s = {.memory = (char *)memory, .rows = (size_t)rows, .width = (size_t)cols * size, .pitch = (size_t)ld * size};
    if ((uintptr_t)memory % 16 != 0 || (rows > 1 && s.pitch % 16 != 0))
        s.aligned = (s.width + 15) / 16 * 16;
    return s;
}

/* Bytes of the copies, of which one begins where the one before ends; 0 where there are none or they don't pay. */
static size_t plan_copies(const shard_cuda_product *p, stored *matrix)
{
    size_t bytes = 0;
    for (int i = 0; i < MATRICES; i++) {
        matrix[i].start = bytes;
        bytes += (matrix[i].rows * matrix[i].aligned + SHARD_CUDA_ALIGN - 1) / SHARD_CUDA_ALIGN * SHARD_CUDA_ALIGN;
    }
    double copied = (double)bytes + (p->accumulate ? (double)(matrix[C].rows * matrix[C].aligned) : 0);
    return bytes <= MOST_SCRATCH && pays(p, 2 * copied) ? bytes : 0;
}

/* The product's kernel adds the bias, or it is added before. */
static shard_status multiply(shard_device *device, const shard_cuda_product *product, shard_dtype dtype)
{
    shard_cuda_product p = *product;
    bool there = false;
    if (p.bias)
        SHARD_TRY(shard_cuda_multiply_biased(device, &p, dtype, &there));
    if (there)
        return SHARD_OK;
    if (p.bias)
        SHARD_TRY(shard_cuda_spread(device, p.m, p.n, p.ld_c, p.bias, p.c, dtype));
    p.accumulate |= p.bias != NULL;
    return shard_cuda_multiply(device, &p, dtype);
}

/* The elements of `count` that fill units, and at least one unit. */
static int64_t filled(int64_t count, int64_t unit)
{
    return count > unit ? count / unit * unit : count;
}

static const void *at(const void *array, int64_t index, int64_t size)
{
    return array ? (const char *)array + index * size : NULL;
}

/* The product's last n - `from` columns of c. */
static shard_cuda_product last_columns(const shard_cuda_product *p, int64_t from, int64_t size)
{
    shard_cuda_product last = *p;
    last.n = p->n - from;
    last.b = at(p->b, p->transpose_b ? from * p->ld_b : from, size);
    last.bias = at(p->bias, from, size);
    last.c = (void *)at(p->c, from, p->wide_c ? 4 : size);
    return last;
}

/* Its last m - `from` rows of c. */
static shard_cuda_product last_rows(const shard_cuda_product *p, int64_t from, int64_t size)
{
    shard_cuda_product last = *p;
    last.m = p->m - from;
    last.a = at(p->a, p->transpose_a ? from : from * p->ld_a, size);
    last.c = (void *)at(p->c, from * p->ld_c, p->wide_c ? 4 : size);
    return last;
}

/* The sum of its last k - `from` terms, added to c. */
static shard_cuda_product last_terms(const shard_cuda_product *p, int64_t from, int64_t size)
{
    shard_cuda_product last = *p;
    last.k = p->k - from;
    last.a = at(p->a, p->transpose_a ? from * p->ld_a : from, size);
    last.b = at(p->b, p->transpose_b ? from : from * p->ld_b, size);
    last.bias = NULL;
    last.accumulate = true;
    return last;
}

static shard_status multiply_terms(shard_device *device, const shard_cuda_product *p, int64_t terms, shard_dtype dtype)
{
    shard_cuda_product first = *p, last = last_terms(p, terms, (int64_t)shard_dtype_size(dtype));
    first.k = terms;
    SHARD_TRY(multiply(device, &first, dtype));
    return multiply(device, &last, dtype);
}

/* The same for c of 16 bits, by way of float32, so that it is rounded once. */
static shard_status multiply_terms_wide(shard_device *device, const shard_cuda_product *p, int64_t terms, shard_dtype dtype)
{
    size_t bytes = (size_t)(p->m * p->n) * sizeof(float);
    shard_cuda_product wide = *p;
    char *scratch = shard_cuda_scratch(device, bytes);
    if (!scratch)
        return shard_last_status();
    wide.c = scratch;
    wide.ld_c = p->n;
    wide.wide_c = true;
    shard_status status = multiply_terms(device, &wide, terms, dtype);
    if (status == SHARD_OK)
        status = shard_cuda_cast(device, p->m * p->n, scratch, SHARD_FLOAT32, p->c, dtype);
    shard_cuda_scratch_release(device, scratch, bytes);
    return status;
}

/* The last terms are added to c, of 16 bits by way of scratch memory of at most `room` bytes. */
static shard_status multiply_filled_terms(shard_device *device, const shard_cuda_product *p, size_t room, shard_dtype dtype)
{
    int64_t size = (int64_t)shard_dtype_size(dtype);
    int64_t terms = !p->transpose_a || p->transpose_b ? filled(p->k, 16 / size) : p->k;
    double results = (double)p->m * (double)p->n;
    if (terms == p->k || p->bias)
        return multiply(device, p, dtype);
    if (p->wide_c || size > 2)
        return pays(p, 2 * 4 * results) ? multiply_terms(device, p, terms, dtype) : multiply(device, p, dtype);
    bool scratched = !p->accumulate && p->ld_c == p->n && 4 * results <= (double)room && pays(p, 4 * 4 * results);
    return scratched ? multiply_terms_wide(device, p, terms, dtype) : multiply(device, p, dtype);
}

/*
 * Divides the extents that are contiguous in a matrix: n, which is in c; m, if it is in a; k, if it is in a or b. All rows are
 * aligned. The last columns read a once more, the last rows b. `room`: of scratch memory.
 */
static shard_status multiply_filled(shard_device *device, const shard_cuda_product *p, size_t room, shard_dtype dtype)
{
    int64_t size = (int64_t)shard_dtype_size(dtype), columns = filled(p->n, 16 / size);
    int64_t rows = p->transpose_a ? filled(p->m, 16 / size) : p->m;
    double terms = (double)p->k * (double)size;
    shard_cuda_product first = *p, last;
    if (columns < p->n && pays(p, (double)p->m * terms)) {
        first.n = columns;
        last = last_columns(p, columns, size);
    } else if (rows < p->m && pays(p, (double)p->n * terms)) {
        first.m = rows;
        last = last_rows(p, rows, size);
    } else {
        return multiply_filled_terms(device, p, room, dtype);
    }
    SHARD_TRY(multiply_filled(device, &first, room, dtype));
    return multiply(device, &last, dtype);
}

static shard_status copy(shard_device *device, const stored *s, char *scratch, bool back)
{
    char *aligned = scratch + s->start;
    if (!s->aligned)
        return SHARD_OK;
    return back ? shard_cuda_copy_rows(device, s->memory, s->pitch, aligned, s->aligned, s->width, s->rows)
                : shard_cuda_copy_rows(device, aligned, s->aligned, s->memory, s->pitch, s->width, s->rows);
}

/* matrix: the operands that are copied to scratch memory, of `bytes` bytes, and the result that is copied from there. */
static shard_status multiply_copies(shard_device *device, const shard_cuda_product *product, const stored *matrix, char *scratch,
                                    size_t bytes, shard_dtype dtype)
{
    shard_cuda_product p = *product;
    int64_t size = (int64_t)shard_dtype_size(dtype), c_size = p.wide_c ? 4 : size;
    for (int i = 0; i < MATRICES; i++)
        if (i != C || p.accumulate)
            SHARD_TRY(copy(device, &matrix[i], scratch, false));
    if (matrix[A].aligned)
        p.a = scratch + matrix[A].start, p.ld_a = (int64_t)matrix[A].aligned / size;
    if (matrix[B].aligned)
        p.b = scratch + matrix[B].start, p.ld_b = (int64_t)matrix[B].aligned / size;
    if (matrix[C].aligned)
        p.c = scratch + matrix[C].start, p.ld_c = (int64_t)matrix[C].aligned / c_size;
    SHARD_TRY(multiply_filled(device, &p, MOST_SCRATCH - bytes, dtype));
    return copy(device, &matrix[C], scratch, true);
}

shard_status shard_cuda_multiply_aligned(shard_device *device, const shard_cuda_product *p, shard_dtype dtype)
{
    size_t size = shard_dtype_size(dtype);
    bool tensor_cores = size == 2 || (dtype == SHARD_FLOAT32 && device->allow_tf32);
    if (!tensor_cores || p->batch > 1)
        return multiply(device, p, dtype);
    stored matrix[MATRICES] = {
        [A] = store(p->a, p->transpose_a ? p->k : p->m, p->transpose_a ? p->m : p->k, p->ld_a, size),
        [B] = store(p->b, p->transpose_b ? p->n : p->k, p->transpose_b ? p->k : p->n, p->ld_b, size),
        [C] = store(p->c, p->m, p->n, p->ld_c, p->wide_c ? 4 : size),
    };
    size_t bytes = plan_copies(p, matrix);
    if (bytes == 0 && (matrix[A].aligned || matrix[B].aligned || matrix[C].aligned))
        return multiply(device, p, dtype);
    if (bytes == 0)
        return multiply_filled(device, p, MOST_SCRATCH, dtype);
    char *scratch = shard_cuda_scratch(device, bytes);
    if (!scratch)
        return shard_last_status();
    shard_status status = multiply_copies(device, p, matrix, scratch, bytes, dtype);
    shard_cuda_scratch_release(device, scratch, bytes);
    return status;
}
