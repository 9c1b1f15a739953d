/*
 * Stand-in for cuBLASLt: D = alpha op(A) op(B) + beta C, with a bias or not.
 *
 * An algorithm belongs to the problem that it was chosen for and to the alignment
 * that was promised: another one refuses it. One that splits the sums needs
 * workspace; one that may round its partial sums to the result's type does. Where 256 bytes of
 * alignment are promised the sums are in another order. A bias is read in 16 bytes, whatever
 * its alignment was when an algorithm was chosen.
 * float64 with a bias is not there, so that what then takes its place runs too.
 *
 * SHARD_CUDA_EMULATION_LT_HEURISTIC  status with which the choice of an algorithm fails: 0, it does not
 * SHARD_CUDA_EMULATION_LT_MATMUL     the same of the product
 */
#include "cublasLt.h"

#include "emulation.h"
#include "products.h"

#include <map>

#include <stdlib.h>
#include <string.h>

using namespace emulation;

enum { CODE_BYTES = 64 << 10 /* loaded at the first product of a type */ };

struct cublasLtContext {
    int device;
    std::map<cudaDataType, LibraryMemory> code;
};
struct cublasLtMatrixLayoutOpaque {
    cudaDataType type;
    int64_t rows, cols, ld;
};
struct cublasLtMatmulDescOpaque {
    cublasComputeType_t compute;
    cudaDataType scale;
    int32_t transpose_a, transpose_b;
    uint32_t epilogue;
    const void *bias;
};
struct cublasLtMatmulPreferenceOpaque {
    uint64_t workspace;
    uint32_t schemes;
    uint32_t alignment[4]; /* of A, B, C, D */
};

/* What an algorithm was chosen for, in its data. */
struct Chosen {
    uint64_t problem;
    uint32_t alignment[4];
    uint32_t coarse, halves;
    uint64_t workspace;
};
static_assert(sizeof(Chosen) <= sizeof(cublasLtMatmulAlgo_t), "the algorithm has room for it");

cublasStatus_t cublasLtCreate(cublasLtHandle_t *lightHandle)
{
    int device;
    if (!lightHandle)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (cudaGetDevice(&device) != cudaSuccess)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    *lightHandle = new cublasLtContext;
    (*lightHandle)->device = device;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t lightHandle)
{
    delete lightHandle;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *matLayout, cudaDataType type, uint64_t rows, uint64_t cols,
                                          int64_t ld)
{
    if (!matLayout)
        return CUBLAS_STATUS_INVALID_VALUE;
    *matLayout = new cublasLtMatrixLayoutOpaque{type, (int64_t)rows, (int64_t)cols, ld};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t matLayout)
{
    delete matLayout;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *matmulDesc, cublasComputeType_t computeType, cudaDataType_t scaleType)
{
    if (!matmulDesc)
        return CUBLAS_STATUS_INVALID_VALUE;
    *matmulDesc = new cublasLtMatmulDescOpaque{computeType, scaleType, CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT, nullptr};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t matmulDesc)
{
    delete matmulDesc;
    return CUBLAS_STATUS_SUCCESS;
}

/* An attribute has one size. */
static cublasStatus_t set(void *field, size_t size, const void *buf, size_t sizeInBytes)
{
    if (!field || !buf || size != sizeInBytes)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(field, buf, size);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t matmulDesc, cublasLtMatmulDescAttributes_t attr, const void *buf,
                                              size_t sizeInBytes)
{
    if (!matmulDesc)
        return CUBLAS_STATUS_INVALID_VALUE;
    switch (attr) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        return set(&matmulDesc->transpose_a, sizeof matmulDesc->transpose_a, buf, sizeInBytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
        return set(&matmulDesc->transpose_b, sizeof matmulDesc->transpose_b, buf, sizeInBytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        return set(&matmulDesc->epilogue, sizeof matmulDesc->epilogue, buf, sizeInBytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        return set(&matmulDesc->bias, sizeof matmulDesc->bias, buf, sizeInBytes);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *pref)
{
    if (!pref)
        return CUBLAS_STATUS_INVALID_VALUE;
    *pref = new cublasLtMatmulPreferenceOpaque{0, CUBLASLT_REDUCTION_SCHEME_MASK, {256, 256, 256, 256}};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t pref)
{
    delete pref;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t pref, cublasLtMatmulPreferenceAttributes_t attr,
                                                    const void *buf, size_t sizeInBytes)
{
    if (!pref)
        return CUBLAS_STATUS_INVALID_VALUE;
    switch (attr) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
        return set(&pref->workspace, sizeof pref->workspace, buf, sizeInBytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
        return set(&pref->schemes, sizeof pref->schemes, buf, sizeInBytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
        return set(&pref->alignment[attr - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], sizeof *pref->alignment, buf, sizeInBytes);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

static uint32_t alignment_of(const void *pointer)
{
    uintptr_t low = (uintptr_t)pointer & -(uintptr_t)pointer;
    return low == 0 || low > 256 ? 256 : (uint32_t)low;
}

static uint64_t problem_of(const cublasLtMatmulDescOpaque &o, const cublasLtMatrixLayoutOpaque *const matrices[4])
{
    uint64_t hash = 1;
    auto mix = [&](uint64_t word) { hash = (hash ^ word) * 0x9e3779b97f4a7c15u, hash ^= hash >> 29; };
    mix(o.compute), mix(o.scale), mix((uint64_t)o.transpose_a), mix((uint64_t)o.transpose_b), mix(o.epilogue);
    for (int i = 0; i < 4; i++)
        mix(matrices[i]->type), mix((uint64_t)matrices[i]->rows), mix((uint64_t)matrices[i]->cols), mix((uint64_t)matrices[i]->ld);
    return hash;
}

/* Whether operation and matrices fit together, and are there. */
static cublasStatus_t check(const cublasLtMatmulDescOpaque *o, const cublasLtMatrixLayoutOpaque *const matrices[4])
{
    if (!o || !matrices[0] || !matrices[1] || !matrices[2] || !matrices[3])
        return CUBLAS_STATUS_INVALID_VALUE;
    const cublasLtMatrixLayoutOpaque &a = *matrices[0], &b = *matrices[1], &c = *matrices[2], &d = *matrices[3];
    for (int i = 0; i < 4; i++)
        if (matrices[i]->rows < 1 || matrices[i]->cols < 1 || matrices[i]->ld < matrices[i]->rows)
            return CUBLAS_STATUS_INVALID_VALUE;
    int64_t m = o->transpose_a ? a.cols : a.rows, k = o->transpose_a ? a.rows : a.cols;
    int64_t k_of_b = o->transpose_b ? b.cols : b.rows, n = o->transpose_b ? b.rows : b.cols;
    if (k != k_of_b || c.rows != m || c.cols != n || d.rows != m || d.cols != n)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (o->epilogue != CUBLASLT_EPILOGUE_DEFAULT && o->epilogue != CUBLASLT_EPILOGUE_BIAS)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (a.type != b.type || c.type != a.type || d.type != a.type || size_of(a.type) == 0)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    bool wide = a.type == CUDA_R_64F;
    bool computes = wide ? o->compute == CUBLAS_COMPUTE_64F
                         : o->compute == CUBLAS_COMPUTE_32F || (a.type == CUDA_R_32F && o->compute == CUBLAS_COMPUTE_32F_FAST_TF32);
    if (!computes || o->scale != (wide ? CUDA_R_64F : CUDA_R_32F) || (wide && o->epilogue == CUBLASLT_EPILOGUE_BIAS))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t lightHandle, cublasLtMatmulDesc_t operationDesc,
                                              cublasLtMatrixLayout_t Adesc, cublasLtMatrixLayout_t Bdesc, cublasLtMatrixLayout_t Cdesc,
                                              cublasLtMatrixLayout_t Ddesc, cublasLtMatmulPreference_t preference,
                                              int requestedAlgoCount, cublasLtMatmulHeuristicResult_t heuristicResultsArray[],
                                              int *returnAlgoCount)
{
    const cublasLtMatrixLayoutOpaque *const matrices[4] = {Adesc, Bdesc, Cdesc, Ddesc};
    if (!lightHandle)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    if (!preference || requestedAlgoCount < 1 || !heuristicResultsArray || !returnAlgoCount)
        return CUBLAS_STATUS_INVALID_VALUE;
    *returnAlgoCount = 0;
    if (int failure = atoi(setting("LT_HEURISTIC", "0").c_str()))
        return (cublasStatus_t)failure;
    cublasStatus_t status = check(operationDesc, matrices);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    Chosen chosen = {};
    chosen.problem = problem_of(*operationDesc, matrices);
    memcpy(chosen.alignment, preference->alignment, sizeof chosen.alignment);
    chosen.halves = 1;
    for (uint32_t promised : chosen.alignment)
        chosen.halves &= promised >= 256;
    int64_t k = operationDesc->transpose_a ? Adesc->rows : Adesc->cols;
    bool coarse = preference->schemes & (CUBLASLT_REDUCTION_SCHEME_INPLACE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE);
    bool splits = k >= 32 && (coarse || preference->schemes & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
    uint64_t needed = 2 * (uint64_t)Ddesc->rows * (uint64_t)Ddesc->cols * 4;
    if (splits && needed <= preference->workspace)
        chosen.workspace = needed, chosen.coarse = coarse && size_of(Ddesc->type) == 2;
    cublasLtMatmulHeuristicResult_t result = {};
    memcpy(&result.algo, &chosen, sizeof chosen);
    result.workspaceSize = (size_t)chosen.workspace;
    result.state = CUBLAS_STATUS_SUCCESS;
    heuristicResultsArray[0] = result;
    *returnAlgoCount = 1;
    return CUBLAS_STATUS_SUCCESS;
}

static void run(const Product &p, void *workspace, size_t workspace_bytes)
{
    if ((uintptr_t)p.bias % 16)
        die("%s: misaligned bias %p", running().c_str(), p.bias);
    check_range(workspace, workspace_bytes);
    check_range(p.a, span(p.transpose_a ? p.k : p.m, p.transpose_a ? p.m : p.k, p.ld_a, p.type));
    check_range(p.b, span(p.transpose_b ? p.n : p.k, p.transpose_b ? p.k : p.n, p.ld_b, p.type));
    check_range(p.d, span(p.m, p.n, p.ld_d, p.result_type));
    if (p.beta != 0)
        check_range(p.c, span(p.m, p.n, p.ld_c, p.result_type));
    if (p.bias)
        check_range(p.bias, (size_t)p.m * size_of(p.result_type));
    multiply(p);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t lightHandle, cublasLtMatmulDesc_t computeDesc, const void *alpha, const void *A,
                              cublasLtMatrixLayout_t Adesc, const void *B, cublasLtMatrixLayout_t Bdesc, const void *beta,
                              const void *C, cublasLtMatrixLayout_t Cdesc, void *D, cublasLtMatrixLayout_t Ddesc,
                              const cublasLtMatmulAlgo_t *algo, void *workspace, size_t workspaceSizeInBytes, cudaStream_t stream)
{
    const cublasLtMatrixLayoutOpaque *const matrices[4] = {Adesc, Bdesc, Cdesc, Ddesc};
    if (!lightHandle)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    cublasStatus_t status = check(computeDesc, matrices);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    if (!alpha || !beta || !A || !B || !D || (C == D && Cdesc->ld != Ddesc->ld))
        return CUBLAS_STATUS_INVALID_VALUE;
    bool has_bias = computeDesc->epilogue == CUBLASLT_EPILOGUE_BIAS;
    if (has_bias && !computeDesc->bias)
        return CUBLAS_STATUS_INVALID_VALUE;
    Chosen chosen = {};
    if (algo) {
        const void *const pointers[4] = {A, B, C, D};
        memcpy(&chosen, algo, sizeof chosen);
        bool fits = chosen.problem == problem_of(*computeDesc, matrices) && chosen.workspace <= workspaceSizeInBytes &&
                    (chosen.workspace == 0 || workspace);
        for (int i = 0; i < 4; i++)
            fits = fits && alignment_of(pointers[i]) >= chosen.alignment[i];
        if (!fits || (uintptr_t)workspace % 256 != 0)
            return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (int failure = atoi(setting("LT_MATMUL", "0").c_str()))
        return (cublasStatus_t)failure;
    if (!lightHandle->code[Adesc->type].take(CODE_BYTES))
        return CUBLAS_STATUS_ALLOC_FAILED;
    bool wide = Adesc->type == CUDA_R_64F;
    Product p = {};
    p.transpose_a = computeDesc->transpose_a != CUBLAS_OP_N, p.transpose_b = computeDesc->transpose_b != CUBLAS_OP_N;
    p.m = Ddesc->rows, p.n = Ddesc->cols, p.k = p.transpose_a ? Adesc->rows : Adesc->cols;
    p.alpha = wide ? *(const double *)alpha : (double)*(const float *)alpha;
    p.beta = wide ? *(const double *)beta : (double)*(const float *)beta;
    p.type = Adesc->type, p.result_type = Ddesc->type;
    p.a = A, p.b = B, p.c = C, p.d = D, p.bias = has_bias ? computeDesc->bias : nullptr;
    p.ld_a = Adesc->ld, p.ld_b = Bdesc->ld, p.ld_c = Cdesc->ld, p.ld_d = Ddesc->ld;
    p.tf32 = computeDesc->compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    p.coarse = chosen.coarse, p.halves = chosen.halves;
    count_product(p);
    size_t workspace_bytes = (size_t)chosen.workspace;
    cudaError_t error = enqueue(stream, "cublasLtMatmul", [=] { run(p, workspace, workspace_bytes); });
    return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
