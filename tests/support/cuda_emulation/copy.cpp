/*
 * Copies and fills. Pageable host memory is read at the call, as CUDA stages it, unless the device reads it by itself, and
 * written before the call returns; pinned memory is read and written when the copy's
 * turn comes. A copy from more than 64 KiB of pageable memory waits for the stream, as CUDA's may.
 */
#include "memory.h"
#include "seen.h"

#include <string.h>

#include <vector>

using namespace emulation;

namespace
{

constexpr size_t STAGED = 64 << 10;

/* Rows of an array. */
struct Rows {
    char *memory;
    size_t pitch, width, rows;

    size_t extent() const
    {
        return rows == 0 || width == 0 ? 0 : (rows - 1) * pitch + width;
    }
    /* Whether the device reaches it: device memory or pinned. */
    bool reached() const
    {
        return is_device_memory(memory) || is_pinned_memory(memory);
    }
    bool sound() const
    {
        return !reached() || is_allocated(memory, extent());
    }
    void check() const
    {
        if (reached())
            check_range(memory, extent());
    }
};

} // namespace

static void copy_rows(const Rows &to, const Rows &from)
{
    if (to.pitch == to.width && from.pitch == to.width)
        memmove(to.memory, from.memory, to.width * to.rows);
    else
        for (size_t row = 0; row < to.rows; row++)
            memmove(to.memory + row * to.pitch, from.memory + row * from.pitch, to.width);
}

/* An error if `kind` says device where memory isn't, or host where it can't be. */
static cudaError_t check_kind(const Rows &to, const Rows &from, enum cudaMemcpyKind kind)
{
    if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault)
        return cudaErrorInvalidMemcpyDirection;
    bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    bool wrong = kind != cudaMemcpyDefault && ((to_device ? !to.reached() : is_device_memory(to.memory)) ||
                                               (from_device ? !from.reached() : is_device_memory(from.memory)));
    return wrong || !to.sound() || !from.sound() ? cudaErrorInvalidValue : cudaSuccess;
}

static cudaError_t copy(const char *what, Rows to, Rows from, enum cudaMemcpyKind kind, cudaStream_t handle, bool waits)
{
    return run_call([&] {
        auto stream = find_stream(handle);
        if (!stream)
            return cudaErrorInvalidResourceHandle;
        if (to.width > to.pitch || from.width > from.pitch)
            return cudaErrorInvalidPitchValue;
        if (to.extent() == 0)
            return cudaSuccess;
        if (!to.memory || !from.memory)
            return cudaErrorInvalidValue;
        cudaError_t error = check_kind(to, from, kind);
        bool pageable = !from.reached() || !to.reached();
        if (error == cudaSuccess && pageable)
            error = refuse_in_capture(stream);
        if (error == cudaSuccess && waits)
            error = refuse_in_capture();
        if (error != cudaSuccess)
            return error;
        std::shared_ptr<std::vector<char>> staged;
        if (!from.reached() && (waits || !reads_pageable())) {
            if (from.extent() > STAGED)
                synchronize(end_of(stream));
            staged = std::make_shared<std::vector<char>>(from.width * from.rows);
            Rows stage = {staged->data(), from.width, from.width, from.rows};
            copy_rows(stage, from);
            from = stage;
        }
        error = enqueue(handle, what, [to, from, staged] {
            to.check();
            if (!staged)
                from.check();
            copy_rows(to, from);
        });
        if (error == cudaSuccess && (waits || !to.reached()))
            waits ? synchronize(end_of(stream)) : run_up_to(end_of(stream));
        return error;
    });
}

static Rows rows(const void *memory, size_t pitch, size_t width, size_t height)
{
    return {(char *)memory, pitch, width, height};
}

cudaError_t cudaMemcpy(void *dst, const void *src, size_t count, enum cudaMemcpyKind kind)
{
    return copy("cudaMemcpy", rows(dst, count, count, 1), rows(src, count, count, 1), kind, nullptr, true);
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t count, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    return copy("cudaMemcpyAsync", rows(dst, count, count, 1), rows(src, count, count, 1), kind, stream, false);
}

cudaError_t cudaMemcpyPeerAsync(void *dst, int dstDevice, const void *src, int srcDevice, size_t count, cudaStream_t stream)
{
    int to = -1, from = -1;
    if (count && (!is_device_memory(dst, &to) || !is_device_memory(src, &from) || to != dstDevice || from != srcDevice))
        return run_call([] { return cudaErrorInvalidValue; });
    return copy("cudaMemcpyPeerAsync", rows(dst, count, count, 1), rows(src, count, count, 1), cudaMemcpyDeviceToDevice, stream,
                false);
}

cudaError_t cudaMemcpy2D(void *dst, size_t dpitch, const void *src, size_t spitch, size_t width, size_t height,
                         enum cudaMemcpyKind kind)
{
    return copy("cudaMemcpy2D", rows(dst, dpitch, width, height), rows(src, spitch, width, height), kind, nullptr, true);
}

cudaError_t cudaMemcpy2DAsync(void *dst, size_t dpitch, const void *src, size_t spitch, size_t width, size_t height,
                              enum cudaMemcpyKind kind, cudaStream_t stream)
{
    {
        std::lock_guard<std::recursive_mutex> lock(mutex());
        emulation_has_seen.row_copies += kind == cudaMemcpyDeviceToDevice;
    }
    return copy("cudaMemcpy2DAsync", rows(dst, dpitch, width, height), rows(src, spitch, width, height), kind, stream, false);
}

/* ---- fills ---- */

static cudaError_t fill(const char *what, Rows to, int value, cudaStream_t handle)
{
    return run_call([&] {
        if (to.width > to.pitch)
            return cudaErrorInvalidPitchValue;
        if (to.extent() == 0)
            return cudaSuccess;
        if (!to.reached() || !to.sound())
            return cudaErrorInvalidValue;
        return enqueue(handle, what, [=] {
            to.check();
            for (size_t row = 0; row < to.rows; row++)
                memset(to.memory + row * to.pitch, value, to.width);
        });
    });
}

cudaError_t cudaMemset(void *devPtr, int value, size_t count)
{
    return fill("cudaMemset", rows(devPtr, count, count, 1), value, nullptr);
}

cudaError_t cudaMemsetAsync(void *devPtr, int value, size_t count, cudaStream_t stream)
{
    return fill("cudaMemsetAsync", rows(devPtr, count, count, 1), value, stream);
}

cudaError_t cudaMemset2DAsync(void *devPtr, size_t pitch, int value, size_t width, size_t height, cudaStream_t stream)
{
    return fill("cudaMemset2DAsync", rows(devPtr, pitch, width, height), value, stream);
}
