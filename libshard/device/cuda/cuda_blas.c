#include "device/cuda/cuda_blas.h"

#include "base/log.h"
#include "base/memory.h"
#include "device/cuda/cuda_cache.h"
#include "device/cuda/cuda_room.h"

#include <cublasLt.h>
#include <cublas_v2.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>

enum {
    WORKSPACE_EACH = 256 << 10, /* for each multiprocessor: 32 MiB on a Hopper, as NVIDIA recommends */
    MOST_ALIGNED = 16,          /* bytes; no larger alignment is assumed, so that results do not depend on addresses */
};

struct shard_cuda_blas {
    cublasHandle_t handle;
    cudaStream_t stream; /* the handle's; NULL: none yet */
    cublasLtHandle_t light;
    void *workspace;
    size_t workspace_bytes;
    shard_cuda_cache biased; /* of plans */
};

/* A product with a bias. */
typedef struct plan {
    bool there; /* cuBLASLt has not refused it */
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t weight, x, y;
    cublasLtMatmulAlgo_t algorithm;
} plan;

/* The handles and the plans are used by one thread at a time. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* cublasCreate returns NOT_INITIALIZED if CUDA has no memory for it. */
static bool lacks_memory(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_ALLOC_FAILED || status == CUBLAS_STATUS_NOT_INITIALIZED;
}

static shard_status check(cublasStatus_t status, const char *call)
{
    if (status == CUBLAS_STATUS_SUCCESS)
        return SHARD_OK;
    return shard_error(status == CUBLAS_STATUS_ALLOC_FAILED ? SHARD_ERROR_MEMORY : SHARD_ERROR_DEVICE, "cuda: %.*s: %s (%s)",
                       (int)strcspn(call, "("), call, cublasGetStatusString(status), cublasGetStatusName(status));
}

#define BLAS_TRY(call) SHARD_TRY(check(call, #call))
/* Of a call that may take memory. */
#define BLAS_TRY_WITH_ROOM(device, call) SHARD_TRY(check(SHARD_CUDA_WITH_ROOM(device, lacks_memory, call), #call))

static void destroy_plan(void *value)
{
    plan *p = value;
    cublasLtMatmulDescDestroy(p->operation);
    cublasLtMatrixLayoutDestroy(p->weight);
    cublasLtMatrixLayoutDestroy(p->x);
    cublasLtMatrixLayoutDestroy(p->y);
    free(p);
}

static shard_status start(shard_device *device, struct shard_cuda_blas *blas)
{
    shard_cuda *cuda = shard_cuda_of(device);
    SHARD_TRY(shard_cuda_refuse_in_capture(cuda, "the first product on the device")); /* the workspace would be the graph's */
    BLAS_TRY_WITH_ROOM(device, cublasCreate(&blas->handle));
    BLAS_TRY_WITH_ROOM(device, cublasLtCreate(&blas->light));
    blas->workspace_bytes = (size_t)cuda->multiprocessors * WORKSPACE_EACH;
    cudaError_t error =
        SHARD_CUDA_WITH_ROOM(device, shard_cuda_lacks_memory,
                             cudaMallocFromPoolAsync(&blas->workspace, blas->workspace_bytes, cuda->pool, cuda->stream));
    SHARD_TRY(shard_cuda_check(error, "cudaMallocFromPoolAsync"));
    BLAS_TRY(
        cublasSetMathMode(blas->handle, (cublasMath_t)(CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION)));
    blas->biased.destroy = destroy_plan;
    return SHARD_OK;
}

/* Gives the handle the device's stream, and its workspace, which cublasSetStream takes away. */
static shard_status set_stream(const shard_cuda *cuda, struct shard_cuda_blas *blas)
{
    if (blas->stream == cuda->stream)
        return SHARD_OK;
    BLAS_TRY(cublasSetStream(blas->handle, cuda->stream));
    BLAS_TRY(cublasSetWorkspace(blas->handle, blas->workspace, blas->workspace_bytes));
    blas->stream = cuda->stream;
    return SHARD_OK;
}

/* With the lock held: the device's handles, made now if this is their first use. */
static shard_status open_blas(shard_device *device, struct shard_cuda_blas **blas)
{
    shard_cuda *cuda = shard_cuda_of(device);
    if (!cuda->blas) {
        struct shard_cuda_blas *made = shard_calloc(1, sizeof *made);
        if (!made)
            return SHARD_ERROR_MEMORY;
        shard_status status = start(device, made);
        if (status != SHARD_OK) {
            if (made->workspace)
                cudaFreeAsync(made->workspace, cuda->stream);
            if (made->light)
                cublasLtDestroy(made->light);
            if (made->handle)
                cublasDestroy(made->handle);
            free(made);
            return status;
        }
        cuda->blas = made;
    }
    *blas = cuda->blas;
    return set_stream(cuda, *blas);
}

static cudaDataType_t type_of(shard_dtype dtype)
{
    switch (dtype) {
    case SHARD_FLOAT64:
        return CUDA_R_64F;
    case SHARD_BFLOAT16:
        return CUDA_R_16BF;
    case SHARD_FLOAT16:
        return CUDA_R_16F;
    default:
        return CUDA_R_32F;
    }
}

static cublasComputeType_t compute_type_of(const shard_device *device, shard_dtype dtype)
{
    if (dtype == SHARD_FLOAT64)
        return CUBLAS_COMPUTE_64F;
    return dtype == SHARD_FLOAT32 && device->allow_tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

/* A factor in the type in which the product is computed. */
typedef union factor {
    float f;
    double d;
} factor;

static factor factor_of(double value, shard_dtype dtype)
{
    if (dtype == SHARD_FLOAT64)
        return (factor){.d = value};
    return (factor){.f = (float)value};
}

/* cuBLAS reads matrices by columns, so it sees ours transposed: it computes c^T = op(b)^T op(a)^T, and a matrix that
 * is stored transposed for us is stored transposed for it. */
static shard_status multiply(shard_device *device, const shard_cuda_product *p, shard_dtype dtype)
{
    struct shard_cuda_blas *blas;
    SHARD_TRY(open_blas(device, &blas));
    cudaDataType_t type = type_of(dtype), c_type = p->wide_c ? CUDA_R_32F : type;
    factor one = factor_of(1, dtype), beta = factor_of(p->accumulate ? 1 : 0, dtype);
    BLAS_TRY_WITH_ROOM(device, cublasGemmStridedBatchedEx_64(blas->handle, p->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N,
                                                             p->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N, p->n, p->m, p->k, &one,
                                                             p->b, type, p->ld_b, p->stride_b, p->a, type, p->ld_a, p->stride_a,
                                                             &beta, p->c, c_type, p->ld_c, p->stride_c, p->batch,
                                                             compute_type_of(device, dtype), CUBLAS_GEMM_DEFAULT));
    return SHARD_OK;
}

shard_status shard_cuda_multiply(shard_device *device, const shard_cuda_product *product, shard_dtype dtype)
{
    pthread_mutex_lock(&lock);
    shard_status status = multiply(device, product, dtype);
    pthread_mutex_unlock(&lock);
    return status;
}

/* ---- products with a bias ---- */

static shard_status describe(const shard_device *device, const shard_cuda_product *p, shard_dtype dtype, plan *made)
{
    cudaDataType_t type = type_of(dtype);
    cublasOperation_t transposed = CUBLAS_OP_T;
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    uint64_t m = (uint64_t)p->m, n = (uint64_t)p->n, k = (uint64_t)p->k;
    BLAS_TRY(cublasLtMatmulDescCreate(&made->operation, compute_type_of(device, dtype),
                                      dtype == SHARD_FLOAT64 ? CUDA_R_64F : CUDA_R_32F));
    BLAS_TRY(cublasLtMatmulDescSetAttribute(made->operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed));
    BLAS_TRY(cublasLtMatmulDescSetAttribute(made->operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
    BLAS_TRY(cublasLtMatmulDescSetAttribute(made->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p->bias, sizeof p->bias));
    BLAS_TRY(cublasLtMatrixLayoutCreate(&made->weight, type, k, n, p->ld_b));
    BLAS_TRY(cublasLtMatrixLayoutCreate(&made->x, type, k, m, p->ld_a));
    BLAS_TRY(cublasLtMatrixLayoutCreate(&made->y, type, n, m, p->ld_c));
    return SHARD_OK;
}

static shard_status prefer(const shard_cuda_product *p, size_t most, cublasLtMatmulPreference_t preference)
{
    uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    uint32_t weight = (uint32_t)shard_cuda_alignment(p->b, MOST_ALIGNED), x = (uint32_t)shard_cuda_alignment(p->a, MOST_ALIGNED),
             y = (uint32_t)shard_cuda_alignment(p->c, MOST_ALIGNED);
    BLAS_TRY(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most, sizeof most));
    BLAS_TRY(
        cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes));
    BLAS_TRY(
        cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &weight, sizeof weight));
    BLAS_TRY(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &x, sizeof x));
    BLAS_TRY(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &y, sizeof y));
    BLAS_TRY(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &y, sizeof y));
    return SHARD_OK;
}

/* The plan is not used again: the bias is added first, then the product. */
static void refuse(plan *made, const shard_cuda_product *p, shard_dtype dtype, const char *call, cublasStatus_t status)
{
    made->there = false;
    shard_log_message(SHARD_LOG_INFO,
                      "cuda: %s refuses a product with a bias of %" PRId64 " rows, %" PRId64 " -> %" PRId64
                      " of %s: %s; the bias is added in a pass of its own",
                      call, p->m, p->k, p->n, shard_dtype_name(dtype), cublasGetStatusName(status));
}

static shard_status choose(struct shard_cuda_blas *blas, const shard_cuda_product *p, shard_dtype dtype, plan *made)
{
    cublasLtMatmulPreference_t preference = NULL;
    BLAS_TRY(cublasLtMatmulPreferenceCreate(&preference));
    shard_status status = prefer(p, blas->workspace_bytes, preference);
    cublasLtMatmulHeuristicResult_t best;
    int count = 0;
    if (status == SHARD_OK) {
        cublasStatus_t asked = cublasLtMatmulAlgoGetHeuristic(blas->light, made->operation, made->weight, made->x, made->y,
                                                              made->y, preference, 1, &best, &count);
        if (asked == CUBLAS_STATUS_SUCCESS)
            asked = count == 1 ? best.state : CUBLAS_STATUS_NOT_SUPPORTED;
        made->there = asked == CUBLAS_STATUS_SUCCESS;
        if (made->there)
            made->algorithm = best.algo;
        else
            refuse(made, p, dtype, "cublasLtMatmulAlgoGetHeuristic", asked);
    }
    cublasLtMatmulPreferenceDestroy(preference);
    return status;
}

static shard_status find_plan(shard_device *device, struct shard_cuda_blas *blas, const shard_cuda_product *p, shard_dtype dtype,
                              plan **found)
{
    shard_cuda_key key = {{dtype, device->allow_tf32, p->m, p->n, p->k, p->ld_a, p->ld_b, p->ld_c,
                           shard_cuda_alignment(p->a, MOST_ALIGNED), shard_cuda_alignment(p->b, MOST_ALIGNED),
                           shard_cuda_alignment(p->c, MOST_ALIGNED)}};
    void **kept = shard_cuda_cache_find(&blas->biased, &key);
    if (!*kept) {
        plan *made = shard_calloc(1, sizeof *made);
        if (!made)
            return SHARD_ERROR_MEMORY;
        shard_status status = describe(device, p, dtype, made);
        if (status == SHARD_OK)
            status = choose(blas, p, dtype, made);
        if (status != SHARD_OK) {
            destroy_plan(made);
            return status;
        }
        *kept = made;
    }
    *found = *kept;
    return SHARD_OK;
}

/* As c^T = b a^T + bias, in cuBLAS's order of the elements. */
static shard_status multiply_biased(shard_device *device, const shard_cuda_product *p, shard_dtype dtype, bool *there)
{
    struct shard_cuda_blas *blas;
    plan *made = NULL;
    SHARD_TRY(open_blas(device, &blas));
    SHARD_TRY(find_plan(device, blas, p, dtype, &made));
    *there = made->there;
    if (!made->there)
        return SHARD_OK;
    factor one = factor_of(1, dtype), zero = factor_of(0, dtype);
    BLAS_TRY(cublasLtMatmulDescSetAttribute(made->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p->bias, sizeof p->bias));
    cublasStatus_t status = SHARD_CUDA_WITH_ROOM(
        device, lacks_memory,
        cublasLtMatmul(blas->light, made->operation, &one, p->b, made->weight, p->a, made->x, &zero, p->c, made->y, p->c, made->y,
                       &made->algorithm, blas->workspace, blas->workspace_bytes, shard_cuda_of(device)->stream));
    if (status != CUBLAS_STATUS_NOT_SUPPORTED && status != CUBLAS_STATUS_INVALID_VALUE && status != CUBLAS_STATUS_ARCH_MISMATCH)
        return check(status, "cublasLtMatmul");
    refuse(made, p, dtype, "cublasLtMatmul", status);
    *there = false;
    return SHARD_OK;
}

shard_status shard_cuda_multiply_biased(shard_device *device, const shard_cuda_product *product, shard_dtype dtype, bool *there)
{
    *there = false;
    if (shard_cuda_alignment(product->bias, MOST_ALIGNED) < MOST_ALIGNED) /* kernels read it in 16 bytes, whatever is preferred */
        return SHARD_OK;
    pthread_mutex_lock(&lock);
    shard_status status = multiply_biased(device, product, dtype, there);
    pthread_mutex_unlock(&lock);
    return status;
}
