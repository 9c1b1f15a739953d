/* Devices and errors, and what every call begins with. */
#include "emulation.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

namespace emulation
{

static thread_local cudaError_t last_error = cudaSuccess;
static thread_local int chosen_device;
static bool forked; /* this process was forked from one that had begun */

void die(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    char text[1024];
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "cuda emulation: %s\n", text);
    fflush(stderr);
    abort();
}

std::string setting(const char *name, const char *fallback)
{
    const char *value = getenv((std::string("SHARD_CUDA_EMULATION_") + name).c_str());
    return value && *value ? value : fallback;
}

int device_count()
{
    static int count = atoi(setting("DEVICES", "1").c_str());
    return count;
}

bool has_pools()
{
    return setting("POOLS", "1") != "0";
}

bool reads_pageable()
{
    return setting("PAGEABLE", "0") != "0";
}

int current_device()
{
    return chosen_device;
}

std::recursive_mutex &mutex()
{
    static auto *made = new std::recursive_mutex; /* still there when the process exits */
    return *made;
}

cudaError_t run_call(const std::function<cudaError_t()> &body, bool needs_device)
{
    static int registered = pthread_atfork(nullptr, nullptr, [] { forked = true; });
    (void)registered;
    cudaError_t error;
    if (forked)
        error = cudaErrorInitializationError;
    else if (device_count() < 0)
        error = cudaErrorInsufficientDriver;
    else if (needs_device && device_count() == 0)
        error = cudaErrorNoDevice;
    else {
        std::lock_guard<std::recursive_mutex> locked(mutex());
        error = body();
    }
    if (error != cudaSuccess)
        last_error = error;
    return error;
}

} // namespace emulation

using namespace emulation;

cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void)
{
    return last_error;
}

const char *cudaGetErrorName(cudaError_t error)
{
    switch (error) {
#define NAME(name, number, text)                                                                                                 \
    case cuda##name:                                                                                                             \
        return "cuda" #name;
        CUDA_EMULATION_ERRORS(NAME)
#undef NAME
    }
    return "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t error)
{
    switch (error) {
#define TEXT(name, number, text)                                                                                                 \
    case cuda##name:                                                                                                             \
        return text;
        CUDA_EMULATION_ERRORS(TEXT)
#undef TEXT
    }
    return "unrecognized error code";
}

cudaError_t cudaRuntimeGetVersion(int *runtimeVersion)
{
    *runtimeVersion = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *driverVersion)
{
    *driverVersion = device_count() < 0 ? 0 : CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 0;
    return run_call([=] {
        *count = device_count();
        return cudaSuccess;
    });
}

static cudaError_t check_device(int device)
{
    return device >= 0 && device < device_count() ? cudaSuccess : cudaErrorInvalidDevice;
}

cudaError_t cudaGetDevice(int *device)
{
    return run_call([=] {
        *device = chosen_device;
        return cudaSuccess;
    });
}

cudaError_t cudaSetDevice(int device)
{
    return run_call([=] {
        cudaError_t error = check_device(device);
        if (error == cudaSuccess)
            chosen_device = device;
        return error;
    });
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device)
{
    return run_call([=] {
        cudaError_t error = check_device(device);
        if (error != cudaSuccess)
            return error;
        struct cudaDeviceProp made = {};
        snprintf(made.name, sizeof made.name, "Emulated GPU");
        snprintf(made.uuid.bytes, sizeof made.uuid.bytes, "emulated GPU %d", device);
        size_t free_bytes;
        cudaMemGetInfo(&free_bytes, &made.totalGlobalMem);
        made.sharedMemPerBlock = 48 << 10;
        made.warpSize = 32;
        made.maxThreadsPerBlock = 1024;
        made.maxThreadsDim[0] = made.maxThreadsDim[1] = 1024;
        made.maxThreadsDim[2] = 64;
        made.maxGridSize[0] = 2147483647;
        made.maxGridSize[1] = made.maxGridSize[2] = 65535;
        made.major = 9;
        made.multiProcessorCount = 3; /* few, so that kernels' loops over the grid run more than once */
        made.maxThreadsPerMultiProcessor = 2048;
        made.pciBusID = device + 1;
        made.l2CacheSize = 1 << 20;
        made.unifiedAddressing = 1;
        *prop = made;
        return cudaSuccess;
    });
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int device)
{
    struct cudaDeviceProp prop;
    cudaError_t error = cudaGetDeviceProperties(&prop, device);
    if (error != cudaSuccess)
        return error;
    return run_call([&] {
        switch (attr) {
        case cudaDevAttrMaxThreadsPerBlock:
            *value = prop.maxThreadsPerBlock;
            return cudaSuccess;
        case cudaDevAttrMaxGridDimX:
        case cudaDevAttrMaxGridDimY:
        case cudaDevAttrMaxGridDimZ:
            *value = prop.maxGridSize[attr - cudaDevAttrMaxGridDimX];
            return cudaSuccess;
        case cudaDevAttrMaxSharedMemoryPerBlock:
            *value = (int)prop.sharedMemPerBlock;
            return cudaSuccess;
        case cudaDevAttrWarpSize:
            *value = prop.warpSize;
            return cudaSuccess;
        case cudaDevAttrMultiProcessorCount:
            *value = prop.multiProcessorCount;
            return cudaSuccess;
        case cudaDevAttrL2CacheSize:
            *value = prop.l2CacheSize;
            return cudaSuccess;
        case cudaDevAttrMaxThreadsPerMultiProcessor:
            *value = prop.maxThreadsPerMultiProcessor;
            return cudaSuccess;
        case cudaDevAttrUnifiedAddressing:
            *value = 1;
            return cudaSuccess;
        case cudaDevAttrMemoryPoolsSupported:
            *value = has_pools();
            return cudaSuccess;
        case cudaDevAttrPageableMemoryAccess:
            *value = reads_pageable();
            return cudaSuccess;
        case cudaDevAttrComputeCapabilityMajor:
            *value = prop.major;
            return cudaSuccess;
        case cudaDevAttrComputeCapabilityMinor:
            *value = prop.minor;
            return cudaSuccess;
        }
        return cudaErrorInvalidValue;
    });
}

cudaError_t cudaDeviceGetPCIBusId(char *pciBusId, int len, int device)
{
    return run_call([=] {
        cudaError_t error = check_device(device);
        if (error == cudaSuccess && snprintf(pciBusId, (size_t)len, "0000:%02x:00.0", device + 1) >= len)
            error = cudaErrorInvalidValue;
        return error;
    });
}

cudaError_t cudaDeviceCanAccessPeer(int *canAccessPeer, int device, int peerDevice)
{
    return run_call([=] {
        if (check_device(device) != cudaSuccess || check_device(peerDevice) != cudaSuccess)
            return cudaErrorInvalidDevice;
        *canAccessPeer = device != peerDevice;
        return cudaSuccess;
    });
}

cudaError_t cudaDeviceEnablePeerAccess(int peerDevice, unsigned int flags)
{
    return run_call([=] {
        if (check_device(peerDevice) != cudaSuccess || peerDevice == chosen_device)
            return cudaErrorInvalidDevice;
        return flags == 0 ? cudaSuccess : cudaErrorInvalidValue;
    });
}
