/* What stands in for cuBLAS, cuBLASLt, cuDNN and NCCL in the emulation: that it computes by
 * their conventions and refuses what they refuse, so that a wrong call is noticed. */
#include "support/kernels.h"
#include "support/check.h"

#include <cublasLt.h>
#include <cublas_v2.h>
#include <cudnn.h>
#include <nccl.h>

#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

static double *values_on_host(const float *device, int count)
{
    double *values = calloc((size_t)count, sizeof *values);
    float *copy = calloc((size_t)count, sizeof *copy);
    ck_assert_int_eq(cudaMemcpy(copy, device, (size_t)count * 4, cudaMemcpyDeviceToHost), cudaSuccess);
    for (int i = 0; i < count; i++)
        values[i] = (double)copy[i];
    free(copy);
    return values;
}

/* Floats in [-1, 1) on the device; what they are in *host. */
static float *floats(int count, uint64_t seed, double **host)
{
    float *values = calloc((size_t)count, sizeof *values), *device = NULL;
    for (int i = 0; i < count; i++)
        values[i] = (float)noise(seed, i);
    ck_assert_int_eq(cudaMalloc((void **)&device, (size_t)count * 4), cudaSuccess);
    ck_assert_int_eq(cudaMemcpy(device, values, (size_t)count * 4, cudaMemcpyHostToDevice), cudaSuccess);
    if (host)
        *host = values_on_host(device, count);
    free(values);
    return device;
}

/* ---- cuBLAS ---- */

typedef struct gemm {
    cublasOperation_t transpose_a, transpose_b;
    int m, n, k, ld_a, ld_b, ld_c, stride_a, stride_b, stride_c, batch;
    cudaDataType type;
    cublasComputeType_t compute;
} gemm;

static const gemm usual = {.m = 5,
                           .n = 4,
                           .k = 3,
                           .ld_a = 7,
                           .ld_b = 6,
                           .ld_c = 8,
                           .stride_a = 60,
                           .stride_b = 50,
                           .stride_c = 40,
                           .batch = 2,
                           .type = CUDA_R_32F,
                           .compute = CUBLAS_COMPUTE_32F};

static cublasStatus_t call(cublasHandle_t handle, const gemm *g, const float *a, const float *b, float beta, float *c)
{
    float alpha = 2;
    return cublasGemmStridedBatchedEx_64(handle, g->transpose_a, g->transpose_b, g->m, g->n, g->k, &alpha, a, g->type, g->ld_a,
                                         g->stride_a, b, g->type, g->ld_b, g->stride_b, &beta, c, g->type, g->ld_c, g->stride_c,
                                         g->batch, g->compute, CUBLAS_GEMM_DEFAULT);
}

/* Element (row, col) of matrix i of a batch; all matrices are by columns. */
static double at(const double *values, int i, int stride, int ld, int row, int col)
{
    return values[i * stride + col * ld + row];
}

START_TEST(multiplies_by_columns)
{
    cublasHandle_t handle = NULL;
    double *a, *b, *c, *got;
    gemm g = usual;
    g.transpose_a = _i & 1 ? CUBLAS_OP_T : CUBLAS_OP_N;
    g.transpose_b = _i & 2 ? CUBLAS_OP_T : CUBLAS_OP_N;
    float beta = _i & 4 ? 3 : 0, *on_a = floats(120, 1, &a), *on_b = floats(100, 2, &b), *on_c = floats(80, 3, &c);
    ck_assert_int_eq(cublasCreate(&handle), CUBLAS_STATUS_SUCCESS);
    ck_assert_int_eq(call(handle, &g, on_a, on_b, beta, on_c), CUBLAS_STATUS_SUCCESS);
    got = values_on_host(on_c, 80);
    for (int i = 0; i < 80; i++) {
        int batch = i / g.stride_c, col = i % g.stride_c / g.ld_c, row = i % g.stride_c % g.ld_c;
        double wanted = c[i], sum = 0;
        for (int l = 0; l < g.k && row < g.m && col < g.n; l++) {
            double left = g.transpose_a ? at(a, batch, g.stride_a, g.ld_a, l, row) : at(a, batch, g.stride_a, g.ld_a, row, l);
            double right = g.transpose_b ? at(b, batch, g.stride_b, g.ld_b, col, l) : at(b, batch, g.stride_b, g.ld_b, l, col);
            sum += left * right;
        }
        if (row < g.m && col < g.n)
            wanted = 2 * sum + (double)beta * c[i];
        ck_assert_double_eq_tol(got[i], wanted, 1e-6);
    }
    cublasDestroy(handle);
}
END_TEST

START_TEST(refuses_products)
{
    cublasHandle_t handle = NULL;
    float *a = floats(120, 1, NULL), *b = floats(100, 2, NULL), *c = floats(80, 3, NULL);
    ck_assert_int_eq(call(NULL, &usual, a, b, 0, c), CUBLAS_STATUS_NOT_INITIALIZED);
    ck_assert_int_eq(cublasCreate(&handle), CUBLAS_STATUS_SUCCESS);
    static const struct {
        size_t field; /* of the usual product, that is changed; and another one */
        int value;
        size_t other;
        int other_value;
        cublasStatus_t status;
    } cases[] = {
#define LIKE(field, value) offsetof(gemm, field), value
        {LIKE(ld_a, 4), LIKE(k, 3), CUBLAS_STATUS_INVALID_VALUE},
        {LIKE(ld_a, 2), LIKE(transpose_a, CUBLAS_OP_T), CUBLAS_STATUS_INVALID_VALUE},
        {LIKE(ld_b, 2), LIKE(k, 3), CUBLAS_STATUS_INVALID_VALUE},
        {LIKE(ld_b, 3), LIKE(transpose_b, CUBLAS_OP_T), CUBLAS_STATUS_INVALID_VALUE},
        {LIKE(ld_b, 0), LIKE(k, 0), CUBLAS_STATUS_INVALID_VALUE},
        {LIKE(ld_c, 4), LIKE(k, 3), CUBLAS_STATUS_INVALID_VALUE},
        {LIKE(m, -1), LIKE(k, 3), CUBLAS_STATUS_INVALID_VALUE},
        {LIKE(batch, -1), LIKE(k, 3), CUBLAS_STATUS_INVALID_VALUE},
        {LIKE(type, CUDA_R_64F), LIKE(k, 3), CUBLAS_STATUS_NOT_SUPPORTED},
        {LIKE(compute, CUBLAS_COMPUTE_64F), LIKE(k, 3), CUBLAS_STATUS_NOT_SUPPORTED},
        {LIKE(type, CUDA_R_16BF), LIKE(compute, CUBLAS_COMPUTE_32F_FAST_TF32), CUBLAS_STATUS_NOT_SUPPORTED},
        {LIKE(type, CUDA_R_16F), LIKE(compute, CUBLAS_COMPUTE_16F), CUBLAS_STATUS_NOT_SUPPORTED},
        {LIKE(m, 0), LIKE(k, 3), CUBLAS_STATUS_SUCCESS},
        {LIKE(batch, 0), LIKE(k, 3), CUBLAS_STATUS_SUCCESS},
#undef LIKE
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gemm g = usual;
        memcpy((char *)&g + cases[i].field, &cases[i].value, sizeof(int));
        memcpy((char *)&g + cases[i].other, &cases[i].other_value, sizeof(int));
        ck_assert_msg(call(handle, &g, a, b, 0, c) == cases[i].status, "case %zu", i);
    }
    ck_assert_int_eq(call(handle, &usual, NULL, b, 0, c), CUBLAS_STATUS_INVALID_VALUE);
    ck_assert_int_eq(cublasSetWorkspace(handle, (char *)a + 4, 64), CUBLAS_STATUS_INVALID_VALUE);
    cublasDestroy(handle);
}
END_TEST

/* A leading dimension that is legal but leads past the matrix. */
START_TEST(stumbles_over_the_end)
{
    cublasHandle_t handle = NULL;
    gemm g = usual;
    float *a = floats(120, 1, NULL), *b = floats(100, 2, NULL), *c = floats(80, 3, NULL);
    g.ld_a = 50;
    cublasCreate(&handle);
    call(handle, &g, a, b, 0, c);
    cudaDeviceSynchronize();
}
END_TEST

/* ---- cuBLASLt ---- */

typedef struct biased {
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t best;
    int count;
} biased;

static cublasStatus_t choose(biased *p, cudaDataType type, const float *bias, size_t workspace)
{
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    bool wide = type == CUDA_R_64F;
    cublasLtCreate(&p->handle);
    cublasLtMatmulDescCreate(&p->operation, wide ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F, wide ? CUDA_R_64F : CUDA_R_32F);
    ck_assert_int_eq(cublasLtMatmulDescSetAttribute(p->operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, 2),
                     CUBLAS_STATUS_INVALID_VALUE);
    cublasLtMatmulDescSetAttribute(p->operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    cublasLtMatmulDescSetAttribute(p->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
    cublasLtMatrixLayoutCreate(&p->a, type, 3, 40, 3);
    cublasLtMatrixLayoutCreate(&p->b, type, 40, 2, 40);
    cublasLtMatrixLayoutCreate(&p->d, type, 3, 2, 3);
    cublasLtMatmulPreferenceCreate(&p->preference);
    cublasLtMatmulPreferenceSetAttribute(p->preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace);
    return cublasLtMatmulAlgoGetHeuristic(p->handle, p->operation, p->a, p->b, p->d, p->d, p->preference, 1, &p->best, &p->count);
}

static cublasStatus_t run(const biased *p, const float *a, const float *b, float *d, void *workspace, size_t bytes)
{
    float one = 1, zero = 0;
    return cublasLtMatmul(p->handle, p->operation, &one, a, p->a, b, p->b, &zero, d, p->d, d, p->d, &p->best.algo, workspace,
                          bytes, NULL);
}

START_TEST(adds_a_bias)
{
    biased p = {0};
    double *a, *b, *bias, *got;
    float *on_a = floats(120, 1, &a), *on_b = floats(80, 2, &b), *on_bias = floats(3, 3, &bias), *d = floats(6, 4, NULL);
    ck_assert_int_eq(choose(&p, CUDA_R_32F, on_bias, 0), CUBLAS_STATUS_SUCCESS);
    ck_assert_int_eq(p.count, 1);
    ck_assert_int_eq(run(&p, on_a, on_b, d, NULL, 0), CUBLAS_STATUS_SUCCESS);
    got = values_on_host(d, 6);
    for (int i = 0; i < 6; i++) {
        double sum = bias[i % 3];
        for (int l = 0; l < 40; l++)
            sum += a[l * 3 + i % 3] * b[i / 3 * 40 + l];
        ck_assert_double_eq_tol(got[i], sum, 1e-5);
    }
}
END_TEST

START_TEST(refuses_algorithms)
{
    biased p = {0}, wide = {0};
    float *a = floats(130, 1, NULL), *b = floats(90, 2, NULL), *bias = floats(4, 3, NULL), *d = floats(6, 4, NULL);
    ck_assert_int_eq(choose(&wide, CUDA_R_64F, bias, 1 << 20), CUBLAS_STATUS_NOT_SUPPORTED);
    ck_assert_int_eq(choose(&p, CUDA_R_32F, bias, 1 << 20), CUBLAS_STATUS_SUCCESS);
    ck_assert_uint_gt(p.best.workspaceSize, 0);
    void *workspace = floats((int)p.best.workspaceSize / 4, 5, NULL);
    ck_assert_int_eq(run(&p, a, b, d, workspace, p.best.workspaceSize), CUBLAS_STATUS_SUCCESS);
    ck_assert_int_eq(run(&p, a, b, d, workspace, p.best.workspaceSize - 1), CUBLAS_STATUS_INVALID_VALUE);
    ck_assert_int_eq(run(&p, a, b, d, NULL, p.best.workspaceSize), CUBLAS_STATUS_INVALID_VALUE);
    ck_assert_int_eq(run(&p, a + 1, b, d, workspace, p.best.workspaceSize), CUBLAS_STATUS_INVALID_VALUE);
    cublasLtMatrixLayoutCreate(&p.d, CUDA_R_32F, 3, 2, 4); /* not what the algorithm is for */
    ck_assert_int_eq(run(&p, a, b, d, workspace, p.best.workspaceSize), CUBLAS_STATUS_INVALID_VALUE);
    cublasLtMatrixLayoutCreate(&p.d, CUDA_R_32F, 3, 2, 2);
    ck_assert_int_eq(run(&p, a, b, d, workspace, p.best.workspaceSize), CUBLAS_STATUS_INVALID_VALUE);
}
END_TEST

/* An algorithm is chosen without a look at the bias, and takes it for aligned. */
START_TEST(stumbles_over_a_misaligned_bias)
{
    biased p = {0};
    float *a = floats(120, 1, NULL), *b = floats(80, 2, NULL), *bias = floats(4, 3, NULL), *d = floats(6, 4, NULL);
    ck_assert_int_eq(choose(&p, CUDA_R_32F, bias + 1, 0), CUBLAS_STATUS_SUCCESS);
    ck_assert_int_eq(run(&p, a, b, d, NULL, 0), CUBLAS_STATUS_SUCCESS);
    cudaDeviceSynchronize();
}
END_TEST

START_TEST(refuses_as_it_is_told)
{
    biased p = {0}, refused = {0};
    float *a = floats(120, 1, NULL), *b = floats(80, 2, NULL), *bias = floats(4, 3, NULL), *d = floats(6, 4, NULL);
    ck_assert_int_eq(choose(&p, CUDA_R_32F, bias, 0), CUBLAS_STATUS_SUCCESS);
    setenv("SHARD_CUDA_EMULATION_LT_HEURISTIC", "14", 1);
    ck_assert_int_eq(choose(&refused, CUDA_R_32F, bias, 0), CUBLAS_STATUS_INTERNAL_ERROR);
    setenv("SHARD_CUDA_EMULATION_LT_MATMUL", "8", 1);
    ck_assert_int_eq(run(&p, a, b, d, NULL, 0), CUBLAS_STATUS_ARCH_MISMATCH);
}
END_TEST

/* ---- cuDNN ---- */

static cudnnStatus_t set(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                         int64_t count, const void *values)
{
    return cudnnBackendSetAttribute(d, name, type, count, values);
}

static cudnnBackendDescriptor_t begin(cudnnBackendDescriptorType_t type)
{
    cudnnBackendDescriptor_t d = NULL;
    ck_assert_int_eq(cudnnBackendCreateDescriptor(type, &d), CUDNN_STATUS_SUCCESS);
    return d;
}

static cudnnBackendDescriptor_t images(int64_t name, cudnnDataType_t type, const int64_t size[4], bool channels_last)
{
    int64_t alignment = 16, n = size[1] * size[2] * size[3], w = size[3], c = size[1];
    int64_t last[4] = {n, 1, w * c, c}, first[4] = {n, size[2] * w, w, 1};
    cudnnBackendDescriptor_t d = begin(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    set(d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &name);
    set(d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    set(d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, size);
    set(d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, channels_last ? last : first);
    ck_assert_int_eq(cudnnBackendFinalize(d), CUDNN_STATUS_SUCCESS);
    return d;
}

static cudnnBackendDescriptor_t windows(int64_t dilation)
{
    cudnnDataType_t type = CUDNN_DATA_FLOAT;
    cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    int64_t two = 2, zeros[2] = {0, 0}, ones[2] = {1, 1}, dilations[2] = {dilation, dilation};
    cudnnBackendDescriptor_t d = begin(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    set(d, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(d, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
    set(d, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &two);
    set(d, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, zeros);
    set(d, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, zeros);
    set(d, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, ones);
    set(d, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, dilations);
    ck_assert_int_eq(cudnnBackendFinalize(d), CUDNN_STATUS_SUCCESS);
    return d;
}

/* How the forward operation of these is finalized: 4 x 4 images, kernels of 3 x 3. */
static cudnnStatus_t operation(cudnnDataType_t type, int64_t c, int64_t of_group, int64_t o, int64_t side, int64_t dilation,
                               bool channels_last, cudnnBackendDescriptor_t *made)
{
    float one = 1, zero = 0;
    cudnnBackendDescriptor_t x = images(1, type, (int64_t[]){2, c, 4, 4}, channels_last), w = windows(dilation);
    cudnnBackendDescriptor_t weight = images(2, type, (int64_t[]){o, of_group, 3, 3}, channels_last),
                             y = images(3, type, (int64_t[]){2, o, side, side}, channels_last);
    *made = begin(CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR);
    set(*made, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_TYPE_FLOAT, 1, &one);
    set(*made, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, CUDNN_TYPE_FLOAT, 1, &zero);
    set(*made, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &w);
    set(*made, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &weight);
    set(*made, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &x);
    set(*made, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &y);
    return cudnnBackendFinalize(*made);
}

/* Whether a heuristic of the mode names an engine for the operation. */
static cudnnStatus_t ask(cudnnHandle_t handle, cudnnBackendDescriptor_t operation, cudnnBackendHeurMode_t mode)
{
    cudnnBackendDescriptor_t graph = begin(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR),
                             heuristic = begin(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    set(graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    set(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &operation);
    ck_assert_int_eq(cudnnBackendFinalize(graph), CUDNN_STATUS_SUCCESS);
    set(heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &graph);
    set(heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    return cudnnBackendFinalize(heuristic);
}

START_TEST(refuses_convolutions)
{
    cudnnBackendDescriptor_t d;
    cudnnHandle_t handle = NULL;
    ck_assert_int_eq(cudnnCreate(&handle), CUDNN_STATUS_SUCCESS);
    ck_assert_int_eq(operation(CUDNN_DATA_FLOAT, 4, 4, 6, 3, 1, true, &d), CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH);
    ck_assert_int_eq(operation(CUDNN_DATA_FLOAT, 4, 3, 6, 2, 1, true, &d), CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH);
    ck_assert_int_eq(operation(CUDNN_DATA_FLOAT, 4, 1, 6, 2, 1, true, &d), CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH);
    ck_assert_int_eq(operation(CUDNN_DATA_DOUBLE, 4, 4, 6, 2, 1, true, &d), CUDNN_STATUS_SUCCESS);
    ck_assert_int_eq(CUDNN_STATUS_CATEGORY(ask(handle, d, CUDNN_HEUR_MODE_FALLBACK)), CUDNN_STATUS_NOT_SUPPORTED);
    ck_assert_int_eq(operation(CUDNN_DATA_FLOAT, 4, 4, 6, 2, 1, false, &d), CUDNN_STATUS_SUCCESS);
    ck_assert_int_eq(CUDNN_STATUS_CATEGORY(ask(handle, d, CUDNN_HEUR_MODE_A)), CUDNN_STATUS_NOT_SUPPORTED);
    ck_assert_int_eq(operation(CUDNN_DATA_BFLOAT16, 4, 4, 6, 2, 1, true, &d), CUDNN_STATUS_SUCCESS);
    ck_assert_int_eq(ask(handle, d, CUDNN_HEUR_MODE_A), CUDNN_STATUS_SUCCESS);
}
END_TEST

START_TEST(refuses_descriptors)
{
    int64_t one = 1, sizes[4] = {1, 2, 3, 4};
    cudnnDataType_t type = CUDNN_DATA_FLOAT;
    cudnnBackendDescriptor_t d = begin(CUDNN_BACKEND_TENSOR_DESCRIPTOR), graph = begin(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    ck_assert_int_eq(set(NULL, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &one), CUDNN_STATUS_BAD_PARAM_NULL_POINTER);
    ck_assert_int_eq(set(d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_INT64, 1, &type), CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE);
    ck_assert_int_eq(set(d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 3, sizes), CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND);
    ck_assert_int_eq(set(d, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &type), CUDNN_STATUS_BAD_PARAM);
    ck_assert_int_eq(cudnnBackendFinalize(d), CUDNN_STATUS_BAD_PARAM);
    ck_assert_int_eq(set(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &d),
                     CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED);
    ck_assert_int_eq(cudnnBackendExecute(NULL, d, d), CUDNN_STATUS_BAD_PARAM_NULL_POINTER);
}
END_TEST

/* ---- NCCL ---- */

/* What a rank has sent goes with it: one that stumbles first waits for the other one to stumble too. */
static void linger(int signal)
{
    (void)signal;
    pause();
}

/* Enters as one of `size`, the others forked before; each on the GPU of its rank times `step`. */
static ncclResult_t enter(int size, int step, int blocking, ncclComm_t *comm, int *rank)
{
    ncclUniqueId id;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    int ends[2];
    config.blocking = blocking;
    ck_assert_int_eq(pipe(ends), 0);
    *rank = 0;
    if (size > 1 && fork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        signal(SIGABRT, linger);
        alarm(20); /* for a rank whose peer has died */
        *rank = 1;
        ck_assert_int_eq(read(ends[0], &id, sizeof id), sizeof id);
    }
    setenv("SHARD_CUDA_EMULATION_DEVICES", "2", 1);
    ck_assert_int_eq(cudaSetDevice(*rank * step), cudaSuccess);
    if (*rank == 0) {
        ck_assert_int_eq(ncclGetUniqueId(&id), ncclSuccess);
        ck_assert_int_eq(write(ends[1], &id, sizeof id), sizeof id);
    }
    return ncclCommInitRankConfig(comm, size, id, *rank, &config);
}

/* Communicator of this process alone, ready. */
static ncclComm_t alone(int blocking)
{
    ncclComm_t comm = NULL;
    int rank;
    ncclResult_t result = enter(1, 1, blocking, &comm, &rank);
    while (result == ncclInProgress)
        ck_assert_int_eq(ncclCommGetAsyncError(comm, &result), ncclSuccess);
    ck_assert_int_eq(result, ncclSuccess);
    return comm;
}

/* What the communicator's call under way comes to; ncclInProgress after a second. */
static ncclResult_t outcome(ncclComm_t comm)
{
    ncclResult_t result = ncclInProgress;
    for (int i = 0; i < 1000 && result == ncclInProgress; i++) {
        ck_assert_int_eq(ncclCommGetAsyncError(comm, &result), ncclSuccess);
        usleep(1000);
    }
    return result;
}

static ncclResult_t sum(const float *from, float *to, size_t count, ncclComm_t comm, cudaStream_t stream)
{
    return ncclAllReduce(from, to, count, ncclFloat32, ncclSum, comm, stream);
}

START_TEST(refuses_calls_in_progress)
{
    ncclComm_t comm = alone(0);
    float *data = floats(10, 1, NULL);
    ck_assert_int_eq(sum(data, data, 10, comm, NULL), ncclInProgress);
    ck_assert_int_eq(sum(data, data, 10, comm, NULL), ncclInvalidUsage);
    ck_assert_int_eq(ncclCommFinalize(comm), ncclInvalidUsage);
    ncclResult_t result = ncclInProgress;
    while (result == ncclInProgress)
        ck_assert_int_eq(ncclCommGetAsyncError(comm, &result), ncclSuccess);
    ck_assert_int_eq(sum(data, data, 10, comm, NULL), ncclInProgress);
}
END_TEST

START_TEST(refuses_two_streams)
{
    ncclComm_t comm = alone(1);
    float *data = floats(10, 1, NULL);
    cudaStream_t other;
    ck_assert_int_eq(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(ncclGroupStart(), ncclSuccess);
        ck_assert_int_eq(sum(data, data, 5, comm, NULL), ncclSuccess);
        ck_assert_int_eq(sum(data + 5, data + 5, 5, comm, i ? other : NULL), ncclSuccess);
        ck_assert_int_eq(ncclGroupEnd(), i ? ncclInvalidUsage : ncclSuccess);
    }
}
END_TEST

START_TEST(stumbles_over_overlap)
{
    ncclComm_t comm = alone(1);
    float *data = floats(11, 1, NULL);
    ck_assert_int_eq(sum(data, data, 10, comm, NULL), ncclSuccess);
    ck_assert_int_eq(cudaDeviceSynchronize(), cudaSuccess); /* in place it goes */
    ck_assert_int_eq(sum(data, data + 1, 10, comm, NULL), ncclSuccess);
    cudaDeviceSynchronize();
}
END_TEST

/* Ends a rank that enter forked: what is tested is the other. */
static void end_peer(int rank)
{
    if (rank == 1)
        _exit(0);
}

START_TEST(refuses_one_gpu_for_two)
{
    ncclComm_t comm = NULL;
    int rank;
    ncclResult_t result = enter(2, !_i, 1, &comm, &rank);
    end_peer(rank);
    ck_assert_int_eq(result, _i ? ncclInvalidUsage : ncclSuccess);
}
END_TEST

/* A peer whose process ends is an error of a sum that waits for it, but not one that has left the communicator. */
START_TEST(notices_a_dead_peer)
{
    const bool leaves = _i;
    ncclComm_t comm = NULL;
    int rank;
    enter(2, 1, 0, &comm, &rank);
    ck_assert_int_eq(outcome(comm), ncclSuccess);
    if (rank == 1) {
        if (leaves)
            ncclCommAbort(comm);
        _exit(0);
    }
    float *data = floats(10, 1, NULL);
    ck_assert_int_eq(sum(data, data, 10, comm, NULL), ncclInProgress);
    ncclResult_t found = outcome(comm); /* on its stream, or an error already */
    for (int i = 0; i < 500 && found == ncclSuccess; i++) {
        found = outcome(comm);
        usleep(leaves ? 200 : 10000);
    }
    ck_assert_int_eq(found, leaves ? ncclSuccess : ncclRemoteError);
    ncclCommAbort(comm);
}
END_TEST

START_TEST(stumbles_over_mismatch)
{
    ncclComm_t comm = NULL;
    int rank;
    ck_assert_int_eq(enter(2, 1, 1, &comm, &rank), ncclSuccess);
    float *data = floats(10, 1, NULL);
    for (size_t count = 5; count < 7; count++) { /* the same at first, then 6 and 7 */
        ck_assert_int_eq(sum(data, data, count + (count == 6 && rank == 1), comm, NULL), ncclSuccess);
        cudaDeviceSynchronize();
    }
    end_peer(rank);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cuda_libraries");
    TCase *tcase = test_case(suite, "libraries");
    tcase_add_loop_test(tcase, multiplies_by_columns, 0, 8);
    tcase_add_test(tcase, refuses_products);
    tcase_add_test_raise_signal(tcase, stumbles_over_the_end, SIGABRT);
    tcase_add_test_raise_signal(tcase, stumbles_over_a_misaligned_bias, SIGABRT);
    tcase_add_test(tcase, refuses_as_it_is_told);
    tcase_add_test(tcase, adds_a_bias);
    tcase_add_test(tcase, refuses_algorithms);
    tcase_add_test(tcase, refuses_convolutions);
    tcase_add_test(tcase, refuses_descriptors);
    tcase_add_test(tcase, refuses_calls_in_progress);
    tcase_add_test(tcase, refuses_two_streams);
    tcase_add_test_raise_signal(tcase, stumbles_over_overlap, SIGABRT);
    tcase_add_loop_test(tcase, refuses_one_gpu_for_two, 0, 2);
    tcase_add_loop_test(tcase, notices_a_dead_peer, 0, 2);
    tcase_add_test_raise_signal(tcase, stumbles_over_mismatch, SIGABRT);
    return test_run(suite);
}
