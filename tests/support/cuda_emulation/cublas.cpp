/*
 * Stand-in for cuBLAS. Matrices are by columns; arguments are checked as cuBLAS
 * does, its pointers as the GPU would when the product runs.
 *
 * As unkind as cuBLAS's documentation allows: setting a stream forgets the
 * workspace; partial sums of 16-bit products are rounded to 16 bits unless that is
 * disallowed; float32 is rounded to TF32 where the compute type allows it.
 */
#include "cublas_v2.h"

#include "emulation.h"
#include "products.h"

#include <map>

using namespace emulation;

enum { HANDLE_BYTES = 256 << 10, CODE_BYTES = 64 << 10 /* loaded at the first product of a type */ };

struct cublasContext {
    LibraryMemory memory;
    std::map<cudaDataType, LibraryMemory> code;
    cudaStream_t stream;
    void *workspace;
    size_t workspace_bytes;
    cublasMath_t math;
};

#define STATUSES(X)                                                                                                              \
    X(SUCCESS, "success")                                                                                                        \
    X(NOT_INITIALIZED, "the library was not initialized")                                                                        \
    X(ALLOC_FAILED, "the resource allocation failed")                                                                            \
    X(INVALID_VALUE, "an unsupported value or parameter was passed to the function")                                             \
    X(ARCH_MISMATCH, "the function requires a feature absent from the device architecture")                                      \
    X(MAPPING_ERROR, "an access to GPU memory space failed")                                                                     \
    X(EXECUTION_FAILED, "the GPU program failed to execute")                                                                     \
    X(INTERNAL_ERROR, "an internal operation failed")                                                                            \
    X(NOT_SUPPORTED, "the functionality requested is not supported")                                                             \
    X(LICENSE_ERROR, "the functionality requested requires some license")

const char *cublasGetStatusName(cublasStatus_t status)
{
#define NAME(name, text) \
    case CUBLAS_STATUS_##name: \
        return "CUBLAS_STATUS_" #name;
    switch (status) {
        STATUSES(NAME)
    }
#undef NAME
    return "unknown cublas status";
}

const char *cublasGetStatusString(cublasStatus_t status)
{
#define TEXT(name, text) \
    case CUBLAS_STATUS_##name: \
        return text;
    switch (status) {
        STATUSES(TEXT)
    }
#undef TEXT
    return "unknown cublas status";
}

cublasStatus_t cublasCreate_v2(cublasHandle_t *handle)
{
    int device;
    if (!handle)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (cudaGetDevice(&device) != cudaSuccess)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    auto made = std::make_unique<cublasContext>();
    if (!made->memory.take(HANDLE_BYTES))
        return CUBLAS_STATUS_ALLOC_FAILED;
    *handle = made.release();
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle)
{
    if (!handle)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t streamId)
{
    if (!handle)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    handle->stream = streamId;
    handle->workspace = nullptr;
    handle->workspace_bytes = 0;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void *workspace, size_t workspaceSizeInBytes)
{
    if (!handle)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    if ((uintptr_t)workspace % 256 != 0)
        return CUBLAS_STATUS_INVALID_VALUE;
    handle->workspace = workspace;
    handle->workspace_bytes = workspaceSizeInBytes;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode)
{
    if (!handle)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    int base = mode & ~CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
    if (base != CUBLAS_DEFAULT_MATH && base != CUBLAS_PEDANTIC_MATH && base != CUBLAS_TF32_TENSOR_OP_MATH)
        return CUBLAS_STATUS_INVALID_VALUE;
    handle->math = mode;
    return CUBLAS_STATUS_SUCCESS;
}

static bool types_go_together(cudaDataType a, cudaDataType b, cudaDataType c, cublasComputeType_t compute)
{
    if (a != b || size_of(a) == 0)
        return false;
    switch (compute) {
    case CUBLAS_COMPUTE_64F:
        return a == CUDA_R_64F && c == CUDA_R_64F;
    case CUBLAS_COMPUTE_32F:
    case CUBLAS_COMPUTE_32F_PEDANTIC:
        return a == CUDA_R_32F ? c == a : (a == CUDA_R_16F || a == CUDA_R_16BF) && (c == a || c == CUDA_R_32F);
    case CUBLAS_COMPUTE_32F_FAST_TF32:
        return a == CUDA_R_32F && c == CUDA_R_32F;
    case CUBLAS_COMPUTE_16F:
        return false; /* its factors are halves, which is not here */
    }
    return false;
}

struct Batch {
    Product first;
    int64_t count;
    long long stride_a, stride_b, stride_c;
    void *workspace;
    size_t workspace_bytes;
};

/* When the product runs: what a GPU would stumble over. */
static void check_memory(const Product &p)
{
    size_t size = size_of(p.type), result_size = size_of(p.result_type);
    if ((uintptr_t)p.a % size || (uintptr_t)p.b % size || (uintptr_t)p.d % result_size)
        die("%s: misaligned matrices %p, %p, %p", running().c_str(), p.a, p.b, p.d);
    size_t a = span(p.transpose_a ? p.k : p.m, p.transpose_a ? p.m : p.k, p.ld_a, p.type);
    size_t b = span(p.transpose_b ? p.n : p.k, p.transpose_b ? p.k : p.n, p.ld_b, p.type), d = span(p.m, p.n, p.ld_d, p.result_type);
    check_range(p.a, a);
    check_range(p.b, b);
    check_range(p.d, d);
    auto overlap = [&](const void *from, size_t bytes) {
        return (const char *)from < (char *)p.d + d && (char *)p.d < (const char *)from + bytes;
    };
    if (overlap(p.a, a) || overlap(p.b, b))
        die("%s: the result lies on an operand", running().c_str());
}

static void run_batch(const Batch &batch)
{
    check_range(batch.workspace, batch.workspace_bytes);
    for (int64_t i = 0; i < batch.count; i++) {
        Product p = batch.first;
        p.a = (const char *)p.a + i * batch.stride_a * (int64_t)size_of(p.type);
        p.b = (const char *)p.b + i * batch.stride_b * (int64_t)size_of(p.type);
        p.d = (char *)p.d + i * batch.stride_c * (int64_t)size_of(p.result_type);
        p.c = p.d;
        check_memory(p);
        multiply(p);
    }
}

/* Factors are read at the call, from the host. */
static double factor(const void *from, cublasComputeType_t compute)
{
    return compute == CUBLAS_COMPUTE_64F ? *(const double *)from : (double)*(const float *)from;
}

cublasStatus_t cublasGemmStridedBatchedEx_64(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int64_t m,
                                             int64_t n, int64_t k, const void *alpha, const void *A, cudaDataType Atype, int64_t lda,
                                             long long int strideA, const void *B, cudaDataType Btype, int64_t ldb,
                                             long long int strideB, const void *beta, void *C, cudaDataType Ctype, int64_t ldc,
                                             long long int strideC, int64_t batchCount, cublasComputeType_t computeType,
                                             cublasGemmAlgo_t algo)
{
    if (!handle)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    if (transa < CUBLAS_OP_N || transa > CUBLAS_OP_C || transb < CUBLAS_OP_N || transb > CUBLAS_OP_C || m < 0 || n < 0 || k < 0 ||
        batchCount < 0 || !alpha || !beta || algo != CUBLAS_GEMM_DEFAULT)
        return CUBLAS_STATUS_INVALID_VALUE;
    int64_t rows_a = transa == CUBLAS_OP_N ? m : k, rows_b = transb == CUBLAS_OP_N ? k : n;
    if (lda < rows_a || lda < 1 || ldb < rows_b || ldb < 1 || ldc < m || ldc < 1)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!types_go_together(Atype, Btype, Ctype, computeType))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (m == 0 || n == 0 || batchCount == 0)
        return CUBLAS_STATUS_SUCCESS;
    if (!C || (k > 0 && (!A || !B)))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (batchCount > 1 && (strideC < 0 ? -strideC : strideC) < (ldc == m ? m * n : m))
        die("cublasGemmStridedBatchedEx_64: a stride of %lld lays the batch's results of %lld x %lld on each other", strideC,
            (long long)m, (long long)n);
    if (!handle->code[Atype].take(CODE_BYTES))
        return CUBLAS_STATUS_ALLOC_FAILED;
    bool disallowed = handle->math & CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
    Product first = {};
    first.transpose_a = transa != CUBLAS_OP_N, first.transpose_b = transb != CUBLAS_OP_N;
    first.m = m, first.n = n, first.k = k;
    first.alpha = factor(alpha, computeType), first.beta = factor(beta, computeType);
    first.type = Atype, first.result_type = Ctype;
    first.a = A, first.b = B, first.d = C;
    first.ld_a = lda, first.ld_b = ldb, first.ld_c = first.ld_d = ldc;
    first.tf32 = computeType == CUBLAS_COMPUTE_32F_FAST_TF32;
    first.coarse = size_of(Ctype) == 2 && !disallowed;
    count_product(first);
    Batch batch = {first, batchCount, strideA, strideB, strideC, handle->workspace, handle->workspace_bytes};
    cudaError_t error = enqueue(handle->stream, "cublasGemmStridedBatchedEx_64", [batch] { run_batch(batch); });
    return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
