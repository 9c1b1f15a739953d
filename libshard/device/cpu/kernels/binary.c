#ifdef real

/* name: y = value of a and b. The second operand is an input, or repeats with the period. */
#define BINARY(name, value)                                                                                                      \
    MAP_BODY(name)                                                                                                               \
    {                                                                                                                            \
        const real *left = in[0], *right = in[1] ? in[1] : (const real *)context + s.offset;                                     \
        real *y = out[0];                                                                                                        \
        _Pragma("omp simd") for (int64_t i = 0; i < s.count; i++)                                                                \
        {                                                                                                                        \
            real a = left[i], b = right[i];                                                                                      \
            y[i] = value;                                                                                                        \
        }                                                                                                                        \
    }
BINARY(add, a + b)
BINARY(sub, a - b)
BINARY(mul, a *b)
BINARY(div, a / b)
BINARY(pow, R(power)(a, b))
BINARY(minimum, ((a < b) | (a != a)) ? a : b)
BINARY(maximum, ((a > b) | (a != a)) ? a : b)
BINARY(prelu, a > 0 ? a : b * a)
#undef BINARY

/* name: dx = gradient, of a, b and dy. */
#define GRADIENT(name, gradient)                                                                                                 \
    MAP_BODY(name)                                                                                                               \
    {                                                                                                                            \
        const real *left = in[0], *right = in[1], *gradients = in[2];                                                            \
        real *dx = out[0];                                                                                                       \
        _Pragma("omp simd") for (int64_t i = 0; i < s.count; i++)                                                                \
        {                                                                                                                        \
            real a = left[i], b = right[i], dy = gradients[i];                                                                   \
            (void)b;                                                                                                             \
            dx[i] = gradient;                                                                                                    \
        }                                                                                                                        \
    }
GRADIENT(div_right, -dy *((a / b) / b))
GRADIENT(pow_left, b == 0 ? 0 : dy * (b * R(power)(a, b - 1)))
GRADIENT(pow_right, ((a == 0) & (b >= 0)) ? 0 : dy * (R(power)(a, b) * R(log)(a)))
GRADIENT(minimum_left, a > b ? 0 : a == b ? dy / 2 : dy)
GRADIENT(minimum_right, a < b ? 0 : a == b ? dy / 2 : dy)
GRADIENT(prelu_left, a > 0 ? dy : b * dy)
GRADIENT(prelu_right, a > 0 ? 0 : a * dy)
#undef GRADIENT

static void R(repeat)(shard_dtype dtype, int64_t cols, const void *b, int64_t period, real *repeated)
{
    for (int64_t start = 0; start < cols; start += SPAN) {
        int64_t count = shard_min(SPAN, cols - start);
        const real *loaded = R(load)(dtype, b, start, count, repeated + start);
        if (loaded != repeated + start)
            memcpy(repeated + start, loaded, (size_t)count * sizeof(real));
    }
    for (int64_t i = cols; i < period; i++)
        repeated[i] = repeated[i - cols];
}

#else

#include "device/cpu/kernels/map.h"
#include "device/cpu/kernels/vector_math.h"

#include <string.h>

#define power_float powf
#define power_double pow

#define SELF "binary.c"
#include "device/cpu/kernels/real.h"

static void run(shard_binary binary, const map *job)
{
    switch (binary) {
    case SHARD_ADD:
        MAP(job, add);
        break;
    case SHARD_SUB:
        MAP(job, sub);
        break;
    case SHARD_MUL:
        MAP(job, mul);
        break;
    case SHARD_DIV:
        MAP(job, div);
        break;
    case SHARD_POW:
        MAP(job, pow);
        break;
    case SHARD_MINIMUM:
        MAP(job, minimum);
        break;
    case SHARD_MAXIMUM:
        MAP(job, maximum);
        break;
    case SHARD_PRELU:
        MAP(job, prelu);
        break;
    }
}

/* b is repeated over the rows: once over a period, instead of span by span. */
static shard_status run_by_rows(shard_device *device, shard_binary binary, map *job, int64_t cols, const void *b)
{
    job->period = wide_period(cols);
    size_t bytes = (size_t)job->period * sizeof(double);
    void *repeated = shard_device_allocate(device, SHARD_MEMORY_WORKSPACE, bytes);
    if (!repeated)
        return shard_last_status();
    BY_TYPE(job->dtype, repeat, job->dtype, cols, b, job->period, repeated);
    job->context = repeated;
    run(binary, job);
    shard_device_release(device, SHARD_MEMORY_WORKSPACE, repeated, bytes);
    return SHARD_OK;
}

shard_status KERNEL(binary)(shard_device *device, shard_binary binary, const shard_expansion *over, const void *a, const void *b,
                            void *y, shard_dtype dtype)
{
    int64_t cols;
    map job = {.dtype = dtype, .n = shard_expansion_count(over), .in = {a}, .out = {y}};
    if (job.n == 0)
        return SHARD_OK;
    if (shard_expansion_dense(over, 0) && shard_expansion_by_rows(over, 1, &cols))
        return run_by_rows(device, binary, &job, cols, b);
    job.in[1] = b;
    job.over = over;
    job.operands = shard_expansion_dense(over, 0) && shard_expansion_dense(over, 1) ? 0 : 2;
    run(binary, &job);
    return SHARD_OK;
}

shard_status KERNEL(binary_backward)(shard_device *device, shard_binary binary, int operand, const shard_expansion *over,
                                     const void *a, const void *b, const void *dy, void *dx, shard_dtype dtype)
{
    map job = {.dtype = dtype, .n = shard_expansion_count(over), .in = {a, b, dy}, .out = {dx}, .over = over, .operands = 2};
    if (binary == SHARD_DIV && operand == 1)
        MAP(&job, div_right);
    else if (binary == SHARD_POW && operand == 0)
        MAP(&job, pow_left);
    else if (binary == SHARD_POW)
        MAP(&job, pow_right);
    else if (binary == SHARD_PRELU && operand == 0)
        MAP(&job, prelu_left);
    else if (binary == SHARD_PRELU)
        MAP(&job, prelu_right);
    else if ((binary == SHARD_MINIMUM) == (operand == 0)) /* the larger one's is that of the smaller one by the other */
        MAP(&job, minimum_left);
    else
        MAP(&job, minimum_right);
    (void)device;
    return SHARD_OK;
}

#endif
