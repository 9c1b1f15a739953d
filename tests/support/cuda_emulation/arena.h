/*
 * The addresses of each device's memory, a range that the host can't touch but while
 * work runs: which are handed out, as the calls come. Memory that a stream has freed
 * is handed out again at once to the same stream, to others when the stream has got there.
 * What the pool keeps is handed out to nobody but the pool, and not given up for want of
 * memory: that is what cudaMemPoolTrimTo is for.
 */
#ifndef CUDA_EMULATION_ARENA_H
#define CUDA_EMULATION_ARENA_H

#include "emulation.h"

#include <list>
#include <map>
#include <vector>

struct CUmemPoolHandle_st {
    int device;
    uint64_t threshold = 0, used = 0, most_used = 0, most_reserved = 0;
};

namespace emulation
{

enum { ALIGN = 256, GUARD = 256 /* behind each allocation: nobody may write there */ };

enum Kind { FREE, USED, FREED /* in a stream's order */ };

struct Block {
    size_t size; /* with its guard */
    size_t payload;
    Kind kind;
    bool pooled; /* in use, or freed: by the pool; free: what the pool keeps */
    bool graphs; /* a graph's */
    Place freed;
};

struct Arena {
    CUmemPoolHandle_st pool;
    char *reserved, *base;          /* where the reserved addresses begin, and those that are used */
    size_t limit, extent;           /* bytes there may be; bytes of addresses */
    size_t high = 0;                /* addresses below base + high have been used */
    size_t plain = 0, kept = 0;     /* bytes outside the pool; bytes that nobody uses but the pool keeps */
    size_t graphs = 0;              /* of `plain`, those of graphs */
    std::map<char *, Block> blocks; /* all below base + high */
    std::list<char *> freed;        /* those that are FREED */
    std::map<char *, size_t> alive; /* payloads of what is allocated where the streams' work has got; memory.cpp */
};

/* A device's arena, made at its first use; that of an address, NULL if it is no device's. */
Arena &arena_of(int device);
Arena *find_arena(const void *memory);
/* One for each device, NULL where it has not been used. */
extern std::vector<std::unique_ptr<Arena>> &arenas;

/* Addresses for an allocation in the order of a stream, or without one, of everybody; NULL
 * where there is no memory. Given back, they are free for all once `freed` has passed. */
char *take(Arena &arena, size_t bytes, const std::shared_ptr<Stream> &stream);
void give_back(Arena &arena, char *memory, Place freed);
/* The block in use that begins there, or the end of the arena's blocks. */
std::map<char *, Block>::iterator find_used(Arena &arena, const void *memory);

/* Addresses of an allocation become a graph's; given back by its end. */
void become_graphs(Arena &arena, char *memory);

/* Bytes that the pool has or keeps; lowers what it keeps to `keep` where it can. */
uint64_t reserved(const Arena &arena);
void trim(Arena &arena, size_t keep);

/* The entry of a map by address that holds the address, its end included. */
template <class Map> static auto find_holder(Map &map, const void *memory)
{
    auto found = map.upper_bound((char *)memory);
    return found == map.begin() ? map.end() : std::prev(found);
}

} // namespace emulation

#endif
