/*
 * One row over all rows of a matrix: what a bias is before the products are added.
 *
 * Invariants: elements are moved as units of 16 bytes, or of one element where a
 * row or its pitch is no multiple of that. A thread keeps its column's unit and writes it down
 * the rows; blocks are as wide as the row, up to BLOCK, and as high as then fits.
 */
#include "device/cuda/kernel.cuh"

#include "device/cuda/cuda_blas.h"

using namespace shard;

template <class Unit> static __global__ void spread(int64_t rows, int64_t cols, int64_t pitch, const Unit *row, Unit *y)
{
    int64_t col = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (col >= cols)
        return;
    Unit unit = row[col];
    for (int64_t i = (int64_t)blockIdx.y * blockDim.y + threadIdx.y; i < rows; i += (int64_t)gridDim.y * blockDim.y)
        y[i * pitch + col] = unit;
}

template <class Unit>
static shard_status spread_units(shard_device *device, int64_t rows, int64_t bytes, int64_t pitch, const void *row, void *y)
{
    int64_t size = (int64_t)sizeof(Unit), cols = bytes / size;
    unsigned width = WARP / 4;
    while (width < BLOCK && width < cols)
        width *= 2;
    unsigned height = BLOCK / width;
    int64_t across = divide_up(cols, width), down = blocks_for(device, rows * across, height * 4) / across;
    int64_t most = divide_up(rows, height);
    dim3 grid((unsigned)across, (unsigned)(down < 1 ? 1 : down < most ? down : most));
    return launch(device, spread<Unit>, grid, dim3(width, height), rows, cols, pitch / size, (const Unit *)row, (Unit *)y);
}

shard_status shard_cuda_spread(shard_device *device, int64_t rows, int64_t cols, int64_t pitch, const void *row, void *y,
                               shard_dtype dtype)
{
    if (rows == 0 || cols == 0)
        return SHARD_OK;
    int64_t size = (int64_t)shard_dtype_size(dtype), bytes = cols * size;
    pitch *= size;
    if (bytes % 16 == 0 && pitch % 16 == 0 && aligned16(row, y))
        return spread_units<uint4>(device, rows, bytes, pitch, row, y);
    switch (size) {
    case 2:
        return spread_units<uint16_t>(device, rows, bytes, pitch, row, y);
    case 4:
        return spread_units<uint32_t>(device, rows, bytes, pitch, row, y);
    default:
        return spread_units<uint64_t>(device, rows, bytes, pitch, row, y);
    }
}
