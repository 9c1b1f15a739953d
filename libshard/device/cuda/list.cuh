/*
 * Lists: kernels that do a list of items in one launch, an item being an array or some
 * with settings of their own. Each item has blocks of its own, one after the other.
 */
#ifndef SHARD_DEVICE_CUDA_LIST_CUH
#define SHARD_DEVICE_CUDA_LIST_CUH

#include "device/cuda/kernel.cuh"

namespace shard
{

/* A block's work: it is the `block`-th of the `blocks` of that item. */
struct Part {
    int item;
    unsigned block, blocks;
};

/* A kernel's argument: as many items as fit into the 4 KB that every GPU takes, with some words
 * next to them. No bytes between the members are left undefined. */
template <class Item> struct List {
    enum { BYTES = 4096 - 64, FIT = (BYTES - sizeof(unsigned)) / (sizeof(Item) + sizeof(unsigned)), COUNT = (FIT - 1) | 1 };
    Item item[COUNT];
    unsigned first[COUNT + 1]; /* the first block of each item; after the last item, the number of blocks */

    __device__ Part part() const
    {
        int at = 0;
#pragma unroll
        for (int step = 256; step > 0; step /= 2)
            if (at + step < COUNT && first[at + step] <= blockIdx.x)
                at += step;
        return {at, blockIdx.x - first[at], first[at + 1] - first[at]};
    }
};

/* Cuts `count` items into lists: item_of(i, &item) says how many blocks item i is good for (0: it
 * is left out), run(list, items, blocks) launches. Where those of a list are more than `most`, they
 * are divided over the items, at least one for each. */
template <class Item, class ItemOf, class Run> shard_status by_lists(int64_t count, int64_t most, ItemOf &&item_of, Run &&run)
{
    static_assert(sizeof(List<Item>) <= List<Item>::BYTES && List<Item>::COUNT < 512, "kernel arguments; the search in part()");
    for (int64_t i = 0; i < count;) {
        List<Item> list = {};
        int64_t wanted[List<Item>::COUNT] = {}, all = 0;
        int items = 0;
        for (; i < count && items < List<Item>::COUNT; i++) {
            Item item = {};
            int64_t blocks = item_of(i, &item);
            if (blocks == 0)
                continue;
            list.item[items] = item;
            wanted[items++] = blocks;
            all += blocks;
        }
        for (int k = 0; k < List<Item>::COUNT; k++) {
            int64_t blocks = all > most ? wanted[k] * most / all : wanted[k];
            list.first[k + 1] = list.first[k] + (unsigned)(blocks == 0 && k < items ? 1 : blocks);
        }
        if (items)
            SHARD_TRY(run(list, items, list.first[items]));
    }
    return SHARD_OK;
}

} // namespace shard

#endif
