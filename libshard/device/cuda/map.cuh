/*
 * Maps: kernels in which element i of each output depends on element i of each input.
 *
 * A body is a struct with the arrays, what else it needs, and
 *     template <int N> struct In;                                        // N elements of each input
 *     template <int N> __device__ In<N> load(int64_t i) const;           // elements i ... i + N - 1
 *     template <int N> __device__ void store(int64_t i, const In<N> &) const;
 * It is called with N = PACK for whole packs, which it moves in one access each, and
 * with N = 1 for the rest, or for all elements where an array is not aligned. A thread
 * loads several packs before it stores the first: enough bytes are then under way, and
 * an output may be an input.
 */
#ifndef SHARD_DEVICE_CUDA_MAP_CUH
#define SHARD_DEVICE_CUDA_MAP_CUH

#include "device/cuda/list.cuh"

namespace shard
{

/* A factor that is one float64 in the device's memory, or 1. */
template <class R> static __device__ inline R scalar(const double *factor)
{
    return factor ? (R)__ldg(factor) : 1;
}

/* The work of thread `first` of `stride`. */
template <int PACK, int AHEAD, class Body>
static __device__ inline void map_elements(int64_t first, int64_t stride, int64_t n, int64_t packs, const Body &body)
{
    for (int64_t i = first; i < packs; i += AHEAD * stride) {
        typename Body::template In<PACK> in[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            if (i + k * stride < packs)
                in[k] = body.template load<PACK>((i + k * stride) * PACK);
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            if (i + k * stride < packs)
                body.template store<PACK>((i + k * stride) * PACK, in[k]);
    }
    for (int64_t i = packs * PACK + first; i < n; i += stride)
        body.template store<1>(i, body.template load<1>(i));
}

template <int PACK, int AHEAD, class Body> static __global__ void map(int64_t n, int64_t packs, Body body)
{
    map_elements<PACK, AHEAD>((int64_t)blockIdx.x * BLOCK + threadIdx.x, (int64_t)gridDim.x * BLOCK, n, packs, body);
}

/* Runs the body on n elements, in packs of PACK where all its arrays are aligned for
 * them, AHEAD of which a thread has under way. */
template <int PACK, int AHEAD, class Body> shard_status run_map(shard_device *device, int64_t n, bool aligned, const Body &body)
{
    if (n == 0)
        return SHARD_OK;
    int64_t packs = aligned ? n / PACK : 0;
    return launch(device, map<PACK, AHEAD, Body>, blocks_for(device, packs ? packs : n, BLOCK), BLOCK, n, packs, body);
}

/* ---- lists ----
 *
 * An item of a list has
 *     __device__ auto begin() const; // the body, with what is the same for all elements but lies in memory
 * which each thread calls once, and
 *     enum { BLOCKS }; // of a multiprocessor that have room in its registers; 0: as many as the compiler finds right
 */

template <class Body> struct Mapped {
    int64_t n, packs;
    Body body;
};

template <int PACK, int AHEAD, class Body>
static __global__ void __launch_bounds__(BLOCK, Body::BLOCKS) map_list(const __grid_constant__ List<Mapped<Body>> list)
{
    Part part = list.part();
    Mapped<Body> item = list.item[part.item];
    map_elements<PACK, AHEAD>((int64_t)part.block * BLOCK + threadIdx.x, (int64_t)part.blocks * BLOCK, item.n, item.packs,
                              item.body.begin());
}

/* Runs `count` bodies as run_map does one, in few launches: body_of(i, &n, &aligned) is the i-th. */
template <int PACK, int AHEAD, class BodyOf> shard_status run_maps(shard_device *device, int64_t count, BodyOf &&body_of)
{
    using Body = decltype(body_of((int64_t)0, (int64_t *)0, (bool *)0));
    auto item_of = [&](int64_t i, Mapped<Body> *item) {
        bool aligned;
        item->body = body_of(i, &item->n, &aligned);
        item->packs = aligned ? item->n / PACK : 0;
        return divide_up(item->packs ? item->packs : item->n, BLOCK);
    };
    return by_lists<Mapped<Body>>(count, most_blocks(device), item_of, [&](const List<Mapped<Body>> &list, int, unsigned blocks) {
        return launch(device, map_list<PACK, AHEAD, Body>, blocks, BLOCK, list);
    });
}

} // namespace shard

#endif
