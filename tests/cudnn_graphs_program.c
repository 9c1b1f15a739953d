/*
 * cudnn_graphs: whether cuDNN has an engine for each graph of attention. It is asked for a GPU that need not be there: cuDNN
 * takes the properties of one as text (since 9.8). Exit code 77, which is "skipped", for an older cuDNN.
 */
#include "device/cuda/cuda_dnn_attention_graph.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#if CUDNN_VERSION < 91600
int main(void)
{
    puts("cuDNN is older than 9.16: libshard computes attention without it");
    return 77;
}
#else

/* Batch, heads, key heads, queries, keys, in, out, offset, scale, causal; as cuda_dnn_attention.c has them: one key head. */
static const shard_attention_shape shapes[] = {
    {16, 1, 1, 256, 256, 64, 64, 0, 0.125, false}, {16, 1, 1, 1024, 1024, 64, 64, 0, 0.125, true},
    {16, 4, 1, 256, 256, 128, 128, 0, 0.1, true},  {2, 3, 1, 70, 70, 16, 16, 0, 1, false},
    {3, 2, 1, 100, 133, 64, 32, 33, 0.1, true},    {1, 1, 1, 64, 1000, 8, 16, 0, 1, false},
    {5, 1, 1, 200, 70, 40, 40, 0, 1, true},
};

/* An H100: the fields that cuDNN 9.19 asks for. */
static const char gpu[] =
    "{\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],\"regsPerBlock\":65536,"
    "\"multiProcessorCount\":132,\"warpSize\":32,\"maxSharedMemoryPerBlock\":49152,\"maxSharedMemoryPerBlockOptin\":232448,"
    "\"reservedSharedMemoryPerBlock\":1024,\"maxRegistersPerSM\":65536,\"maxCtasPerSM\":32,\"maxThreadsPerBlock\":1024,"
    "\"maxThreadsPerSM\":2048,\"pciDeviceId\":0,\"isTccDriver\":0,\"supportCoopLaunch\":1,\"totalGlobalMem\":85000000000,"
    "\"smClockRateKHz\":1980000,\"memClockRateKHz\":2619000,\"l2CacheSize\":52428800,\"cudaDeviceId\":0,\"deviceVer\":900,"
    "\"driverVer\":13000,\"deviceName\":\"NVIDIA H100\"}";

static cudnnBackendDescriptor_t device_properties(shard_cuda_dnn_graph *g)
{
    cudnnBackendDescriptor_t properties = shard_cuda_dnn_begin(g, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    shard_cuda_dnn_set(g, properties, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, (int64_t)strlen(gpu), gpu);
    shard_cuda_dnn_finish(g, properties);
    return properties;
}

/* Whether cuda_dnn.c would take an engine of this configuration for 16-bit types: by its numerical notes. */
static bool is_taken(cudnnBackendDescriptor_t configuration)
{
    int notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    int64_t count = 0, one;
    bool taken = false;
    cudnnBackendDescriptor_t engine = NULL;
    if (cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine) != CUDNN_STATUS_SUCCESS)
        return false;
    if (cudnnBackendGetAttribute(configuration, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &one, &engine) ==
            CUDNN_STATUS_SUCCESS &&
        cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                 CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &count, notes) == CUDNN_STATUS_SUCCESS) {
        taken = true;
        for (int64_t i = 0; i < count; i++)
            taken &= notes[i] == CUDNN_NUMERICAL_NOTE_TENSOR_CORE || notes[i] == CUDNN_NUMERICAL_NOTE_STRICT_NAN_PROP;
    }
    cudnnBackendDestroyDescriptor(engine);
    return taken;
}

/* The engines that the heuristic names, that support the graph, and that libshard takes; -1 with a text for a graph that is
 * wrong. */
static int64_t engines_for(const shard_attention_graph *of, bool backward)
{
    shard_cuda_dnn_graph g = {0};
    cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    int64_t named = 0, there = 0;
    cudnnBackendDescriptor_t configuration[16] = {NULL};
    (backward ? shard_cuda_dnn_describe_attention_backward : shard_cuda_dnn_describe_attention)(&g, of);
    cudnnBackendDescriptor_t whole = shard_cuda_dnn_begin(&g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    shard_cuda_dnn_set(&g, whole, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g.operation_count, g.operations);
    shard_cuda_dnn_finish(&g, whole);
    cudnnBackendDescriptor_t properties = device_properties(&g);
    cudnnBackendDescriptor_t heuristic = shard_cuda_dnn_begin(&g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    shard_cuda_dnn_set(&g, heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &whole);
    shard_cuda_dnn_set(&g, heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    shard_cuda_dnn_set(&g, heuristic, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &properties);
    shard_cuda_dnn_finish(&g, heuristic);
    for (; named < 16 && g.status == CUDNN_STATUS_SUCCESS; named++)
        configuration[named] = shard_cuda_dnn_begin(&g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (g.status == CUDNN_STATUS_SUCCESS)
        g.status = cudnnBackendGetAttribute(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, named,
                                            &there, configuration);
    if (g.status != CUDNN_STATUS_SUCCESS) {
        char why[512] = "";
        cudnnGetLastErrorString(why, sizeof why);
        printf("%s: %s\n", cudnnGetErrorString(g.status), why);
        there = -1;
    }
    int64_t taken = there < 0 ? there : 0;
    for (int64_t i = 0; i < there; i++)
        taken += is_taken(configuration[i]);
    for (int i = 0; i < g.count; i++)
        cudnnBackendDestroyDescriptor(g.made[i]);
    return taken;
}

/* cuDNN compiles engines with the driver's library. Where there is none, the toolkit's stand-in has its names. */
static bool open_driver(const char *stand_in)
{
    return dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) || dlopen(stand_in, RTLD_NOW | RTLD_GLOBAL);
}

int main(int argc, char **argv)
{
    int failed = 0;
    if (argc < 2 || !open_driver(argv[1])) {
        puts("no libcuda.so.1, and no stand-in for it");
        return 77;
    }
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int form = 0; form < 4; form++) {
            bool backward = form % 2 == 1;
            shard_attention_graph graph = {shapes[i], form < 2 ? SHARD_FLOAT16 : SHARD_BFLOAT16};
            int64_t engines = engines_for(&graph, backward);
            printf("%s of %lld queries, %lld keys, %lld and %lld features: %lld engines\n", backward ? "backward" : "forward",
                   (long long)shapes[i].queries, (long long)shapes[i].keys, (long long)shapes[i].in, (long long)shapes[i].out,
                   (long long)engines);
            failed |= engines < 1;
        }
    return failed;
}
#endif
