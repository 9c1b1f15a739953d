/* Large products of floats by oneDNN; small ones, for which its threads would only wait
 * for each other, and doubles by plain loops. */
#include "products.h"

#include "emulation.h"
#include "seen.h"

extern "C" {
#include "base/dtype.h"
}

#include <oneapi/dnnl/dnnl.h>

#include <vector>

emulation_seen emulation_has_seen;

namespace emulation {

static bool is_aligned(const void *from, int64_t cols, int64_t ld, cudaDataType type)
{
    return (uintptr_t)from % 16 == 0 && (cols <= 1 || ld * (int64_t)size_of(type) % 16 == 0);
}

void count_product(const Product &p)
{
    std::lock_guard<std::recursive_mutex> lock(mutex());
    emulation_has_seen.products++;
    emulation_has_seen.biased += p.bias != nullptr;
    emulation_has_seen.unaligned += !is_aligned(p.a, p.transpose_a ? p.m : p.k, p.ld_a, p.type) ||
                                    !is_aligned(p.b, p.transpose_b ? p.k : p.n, p.ld_b, p.type) ||
                                    !is_aligned(p.d, p.n, p.ld_d, p.result_type);
}

size_t size_of(cudaDataType type)
{
    switch (type) {
    case CUDA_R_64F:
        return 8;
    case CUDA_R_32F:
        return 4;
    case CUDA_R_16F:
    case CUDA_R_16BF:
        return 2;
    }
    return 0;
}

void widen(cudaDataType type, int64_t count, const void *from, float *to)
{
    for (int64_t i = 0; i < count; i++)
        switch (type) {
        case CUDA_R_32F:
            to[i] = ((const float *)from)[i];
            break;
        case CUDA_R_64F:
            to[i] = (float)((const double *)from)[i];
            break;
        case CUDA_R_16F:
            to[i] = shard_float16_to_float(((const uint16_t *)from)[i]);
            break;
        case CUDA_R_16BF:
            to[i] = shard_bfloat16_to_float(((const uint16_t *)from)[i]);
            break;
        }
}

void narrow(cudaDataType type, int64_t count, const float *from, void *to)
{
    for (int64_t i = 0; i < count; i++)
        switch (type) {
        case CUDA_R_32F:
            ((float *)to)[i] = from[i];
            break;
        case CUDA_R_64F:
            ((double *)to)[i] = from[i];
            break;
        case CUDA_R_16F:
            ((uint16_t *)to)[i] = shard_float_to_float16(from[i]);
            break;
        case CUDA_R_16BF:
            ((uint16_t *)to)[i] = shard_float_to_bfloat16(from[i]);
            break;
        }
}

void round_to_tf32(int64_t count, float *values)
{
    for (int64_t i = 0; i < count; i++)
        if (values[i] - values[i] == 0) /* finite */
            values[i] = shard_bits_float((shard_float_bits(values[i]) + 0x1000u) & 0xffffe000u);
}

size_t span(int64_t rows, int64_t cols, int64_t ld, cudaDataType type)
{
    return rows == 0 || cols == 0 ? 0 : (size_t)((cols - 1) * ld + rows) * size_of(type);
}

void multiply_rows(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t ld_a,
                   const float *b, int64_t ld_b, float *c, int64_t ld_c)
{
    if (k > 0 && m * n * k > 1 << 20) {
        if (dnnl_sgemm(transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', m, n, k, alpha, a, ld_a, b, ld_b, 1.0f, c, ld_c) != dnnl_success)
            die("oneDNN's sgemm failed");
        return;
    }
    for (int64_t i = 0; i < m; i++)
        for (int64_t l = 0; l < k; l++) {
            float factor = alpha * a[transpose_a ? l * ld_a + i : i * ld_a + l];
            const float *from = b + (transpose_b ? l : l * ld_b);
            int64_t step = transpose_b ? ld_b : 1;
            for (int64_t j = 0; j < n; j++)
                c[i * ld_c + j] += factor * from[j * step];
        }
}

/* Whether the sums begin with their second half: with SHARD_CUDA_EMULATION_PRODUCTS=loose that depends on where
 * the matrices lie, by more than their alignment to 16 bytes. */
static bool begins_in_the_middle(const Product &p)
{
    static const std::string kind = setting("PRODUCTS", "same");
    if (kind != "same" && kind != "loose")
        die("SHARD_CUDA_EMULATION_PRODUCTS is same or loose, not %s", kind.c_str());
    return kind == "loose" && ((uintptr_t)p.a ^ (uintptr_t)p.b ^ (uintptr_t)p.d) / 64 % 2;
}

static void multiply_double(const Product &p)
{
    const double *a = (const double *)p.a, *b = (const double *)p.b, *c = (const double *)p.c, *bias = (const double *)p.bias;
    double *d = (double *)p.d;
    std::vector<double> column((size_t)p.m);
    const int64_t first = begins_in_the_middle(p) ? p.k / 2 : 0;
    for (int64_t j = 0; j < p.n; j++) {
        column.assign((size_t)p.m, 0.0);
        for (int64_t term = 0; term < p.k; term++) {
            int64_t l = (term + first) % p.k;
            double factor = b[p.transpose_b ? j + l * p.ld_b : l + j * p.ld_b];
            int64_t start = p.transpose_a ? l : l * p.ld_a, step = p.transpose_a ? p.ld_a : 1;
            for (int64_t i = 0; i < p.m; i++)
                column[(size_t)i] += factor * a[start + i * step];
        }
        for (int64_t i = 0; i < p.m; i++)
            d[i + j * p.ld_d] = p.alpha * column[(size_t)i] + (p.beta != 0 ? p.beta * c[i + j * p.ld_c] : 0) + (bias ? bias[i] : 0);
    }
}

/* The matrix as packed columns of floats; itself if it is one already. */
static const float *packed(cudaDataType type, const void *from, int64_t rows, int64_t cols, int64_t ld, bool tf32,
                           std::vector<float> &room)
{
    if (type == CUDA_R_32F && ld == rows && !tf32)
        return (const float *)from;
    room.resize((size_t)(rows * cols));
    for (int64_t j = 0; j < cols; j++)
        widen(type, rows, (const char *)from + (size_t)(j * ld) * size_of(type), room.data() + j * rows);
    if (tf32)
        round_to_tf32(rows * cols, room.data());
    return room.data();
}

/* sum [m, n] += alpha times the products of the terms from `first` on; a and b are packed. */
static void add_products(const Product &p, int64_t first, int64_t terms, const float *a, const float *b, float *sum)
{
    int64_t ld_a = p.transpose_a ? p.k : p.m, ld_b = p.transpose_b ? p.n : p.k;
    a += p.transpose_a ? first : first * ld_a;
    b += p.transpose_b ? first * ld_b : first;
    /* by rows they are transposed ones */
    multiply_rows(p.transpose_b, p.transpose_a, p.n, p.m, terms, (float)p.alpha, b, ld_b, a, ld_a, sum, p.m);
}

static void multiply_float(const Product &p)
{
    std::vector<float> room_a, room_b, sum((size_t)(p.m * p.n), 0.0f), column((size_t)p.m);
    const float *a = packed(p.type, p.a, p.transpose_a ? p.k : p.m, p.transpose_a ? p.m : p.k, p.ld_a, p.tf32, room_a);
    const float *b = packed(p.type, p.b, p.transpose_b ? p.n : p.k, p.transpose_b ? p.k : p.n, p.ld_b, p.tf32, room_b);
    int64_t half = p.coarse || p.halves ? p.k / 2 : p.k;
    bool from_middle = half == p.k && begins_in_the_middle(p);
    if (from_middle)
        add_products(p, p.k / 2, p.k - p.k / 2, a, b, sum.data());
    add_products(p, 0, from_middle ? p.k / 2 : half, a, b, sum.data());
    if (p.coarse) {
        std::vector<char> rounded(sum.size() * size_of(p.result_type));
        narrow(p.result_type, p.m * p.n, sum.data(), rounded.data());
        widen(p.result_type, p.m * p.n, rounded.data(), sum.data());
    }
    if (half < p.k) {
        std::vector<float> second(sum.size(), 0.0f);
        add_products(p, half, p.k - half, a, b, second.data());
        for (size_t i = 0; i < sum.size(); i++)
            sum[i] += second[i];
    }
    size_t size = size_of(p.result_type);
    for (int64_t j = 0; j < p.n; j++) {
        float *to = sum.data() + j * p.m;
        if (p.beta != 0)
            widen(p.result_type, p.m, (const char *)p.c + (size_t)(j * p.ld_c) * size, column.data());
        for (int64_t i = 0; i < p.m && p.beta != 0; i++)
            to[i] += (float)p.beta * column[(size_t)i];
        if (p.bias)
            widen(p.result_type, p.m, p.bias, column.data());
        for (int64_t i = 0; i < p.m && p.bias; i++)
            to[i] += column[(size_t)i];
        narrow(p.result_type, p.m, to, (char *)p.d + (size_t)(j * p.ld_d) * size);
    }
}

void multiply(const Product &product)
{
    if (product.m == 0 || product.n == 0)
        return;
    if (product.type == CUDA_R_64F)
        multiply_double(product);
    else
        multiply_float(product);
}

} // namespace emulation
