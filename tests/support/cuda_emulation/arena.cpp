#include "arena.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { HUGE = 2 << 20 };

namespace emulation
{

std::vector<std::unique_ptr<Arena>> &arenas = *new std::vector<std::unique_ptr<Arena>>;
static int opened;

/* ---- arenas ---- */

static size_t memory_limit()
{
    static const std::string text = setting("MEMORY", "64G");
    char *end;
    unsigned long long bytes = strtoull(text.c_str(), &end, 10);
    const char *units = "KMG", *unit = *end ? strchr(units, *end) : nullptr;
    if (end == text.c_str() || (*end && !unit))
        die("SHARD_CUDA_EMULATION_MEMORY is a number of bytes, or with K, M or G, not %s", text.c_str());
    return (size_t)bytes << (unit ? 10 * (unit - units + 1) : 0);
}

Arena *find_arena(const void *memory)
{
    for (auto &arena : arenas)
        if (arena && (const char *)memory >= arena->reserved && (const char *)memory < arena->base + arena->extent)
            return arena.get();
    return nullptr;
}

/* Says why, where the host touches device memory; the access then ends the process. */
static void explain_fault(int signal, siginfo_t *info, void *)
{
    static const char text[] = "cuda emulation: the host touches device memory\n";
    if (find_arena(info->si_addr) && write(STDERR_FILENO, text, sizeof text - 1) < 0)
        abort();
    ::signal(signal, SIG_DFL);
}

Arena &arena_of(int device)
{
    if (arenas.empty()) {
        arenas.resize((size_t)device_count());
        struct sigaction before, explain = {};
        explain.sa_sigaction = explain_fault;
        explain.sa_flags = SA_SIGINFO;
        if (sigaction(SIGSEGV, nullptr, &before) == 0 && before.sa_handler == SIG_DFL)
            sigaction(SIGSEGV, &explain, nullptr);
    }
    auto &arena = arenas[(size_t)device];
    if (!arena) {
        arena = std::make_unique<Arena>();
        arena->pool.device = device;
        arena->limit = memory_limit();
        arena->extent = arena->limit / HUGE * HUGE * 2 + HUGE; /* twice, for memory in pieces */
        const size_t step = (size_t)4 << 30;
        arena->reserved =
            (char *)mmap(nullptr, arena->extent + 2 * step, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (arena->reserved == MAP_FAILED)
            die("no addresses for %zu bytes of device memory", arena->extent);
        arena->base =
            (char *)(((uintptr_t)arena->reserved / step + 1) * step + step / 2); /* small numbers are not its lower halves */
        madvise(arena->base, arena->extent, MADV_HUGEPAGE);                      /* large pages are opened and closed fast */
    }
    return *arena;
}

static void protect(const Arena &arena, int protection)
{
    size_t used = (arena.high + HUGE - 1) / HUGE * HUGE;
    if (used && mprotect(arena.base, used, protection) != 0)
        die("mprotect of device memory failed");
}

static void protect_all(int protection)
{
    for (auto &arena : arenas)
        if (arena)
            protect(*arena, protection);
}

OpenMemory::OpenMemory()
{
    if (opened++ == 0)
        protect_all(PROT_READ | PROT_WRITE);
}

OpenMemory::~OpenMemory()
{
    if (--opened == 0)
        protect_all(PROT_NONE);
}

/* ---- handing out ---- */

uint64_t reserved(const Arena &arena)
{
    return arena.pool.used + arena.kept;
}

/* Whether two neighbours are free, and alike. */
static bool joins(const Block &block, const Block &next)
{
    return block.kind == FREE && next.kind == FREE && block.pooled == next.pooled;
}

/* Joins a free block to its neighbours; gives the one that it is in then. */
static std::map<char *, Block>::iterator join(Arena &arena, std::map<char *, Block>::iterator block)
{
    auto next = std::next(block);
    if (next != arena.blocks.end() && joins(block->second, next->second)) {
        block->second.size += next->second.size;
        arena.blocks.erase(next);
    }
    if (block != arena.blocks.begin() && joins(std::prev(block)->second, block->second)) {
        auto before = std::prev(block);
        before->second.size += block->second.size;
        arena.blocks.erase(block);
        block = before;
    }
    return block;
}

/* Frees a block for everybody, or for everybody who takes it from the pool. */
static void make_free(Arena &arena, std::map<char *, Block>::iterator block)
{
    block->second.kind = FREE;
    join(arena, block);
}

/* Blocks whose stream has got to their end are free for all; those of a pool count as free, as CUDA's, once the host has
 * synchronized with that. */
static void sweep(Arena &arena)
{
    arena.freed.remove_if([&](char *memory) {
        auto block = arena.blocks.find(memory);
        const Place &freed = block->second.freed;
        if (!freed.passed() || (block->second.pooled && !freed.seen()))
            return false;
        block->second.freed = Place();
        make_free(arena, block);
        return true;
    });
}

/* The system takes whole pages, and blocks begin and end inside of them. */
static void drop_pages(char *memory, size_t size)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t begin = ((uintptr_t)memory + page - 1) / page * page, end = ((uintptr_t)memory + size) / page * page;
    if (begin < end)
        madvise((void *)begin, end - begin, MADV_DONTNEED);
}

void trim(Arena &arena, size_t keep)
{
    sweep(arena);
    if (reserved(arena) <= keep)
        return;
    for (auto block = arena.blocks.begin(); block != arena.blocks.end(); ++block)
        if (block->second.kind == FREE && block->second.pooled) {
            drop_pages(block->first, block->second.size);
            arena.kept -= block->second.size;
            block->second.pooled = false;
            block = join(arena, block);
        }
}

void keep_to_thresholds()
{
    for (auto &arena : arenas)
        if (arena && reserved(*arena) > arena->pool.threshold)
            trim(*arena, arena->pool.threshold);
}

/* Of what is free for this allocation the smallest block: of the pool's, or of nobody's. */
static std::map<char *, Block>::iterator best_fit(Arena &arena, size_t size, const std::shared_ptr<Stream> &stream, bool pooled)
{
    auto best = arena.blocks.end();
    for (auto block = arena.blocks.begin(); block != arena.blocks.end(); ++block) {
        const Block &b = block->second;
        bool mine = stream && b.freed.stream == stream;
        bool reusable = b.kind == FREE || (b.kind == FREED && (mine || (stream && b.freed.passed())) && b.size < 2 * size);
        if (reusable && b.pooled == pooled && b.size >= size && (best == arena.blocks.end() || b.size < best->second.size))
            best = block;
    }
    return best;
}

char *take(Arena &arena, size_t bytes, const std::shared_ptr<Stream> &stream)
{
    size_t size = (bytes + ALIGN - 1) / ALIGN * ALIGN + GUARD;
    if (bytes > arena.limit || size > arena.limit)
        return nullptr;
    sweep(arena);
    auto block = stream ? best_fit(arena, size, stream, true) : arena.blocks.end();
    if (block == arena.blocks.end()) { /* the pool has none, or is not asked */
        if (arena.plain + reserved(arena) + size > arena.limit)
            return nullptr;
        block = best_fit(arena, size, nullptr, false);
    }
    if (block == arena.blocks.end()) {
        if (arena.high + size > arena.extent)
            return nullptr;
        block = arena.blocks.emplace(arena.base + arena.high, Block{size, 0, FREE, false, false, {}}).first;
        arena.high += size;
        if (opened)
            protect(arena, PROT_READ | PROT_WRITE);
    }
    if (block->second.kind == FREED)
        arena.freed.remove(block->first);
    else if (block->second.size > size) {
        arena.blocks.emplace(block->first + size, Block{block->second.size - size, 0, FREE, block->second.pooled, false, {}});
        block->second.size = size;
    }
    if (block->second.pooled)
        arena.kept -= block->second.size;
    block->second = Block{block->second.size, bytes, USED, stream != nullptr, false, {}};
    (stream ? arena.pool.used : arena.plain) += block->second.size;
    if (arena.pool.used > arena.pool.most_used)
        arena.pool.most_used = arena.pool.used;
    if (reserved(arena) > arena.pool.most_reserved)
        arena.pool.most_reserved = reserved(arena);
    return block->first;
}

void give_back(Arena &arena, char *memory, Place freed)
{
    auto block = arena.blocks.find(memory);
    size_t size = block->second.size;
    (block->second.pooled ? arena.pool.used : arena.plain) -= size;
    if (block->second.pooled)
        arena.kept += size;
    if (block->second.graphs)
        arena.graphs -= size;
    block->second.kind = FREED;
    block->second.freed = freed;
    arena.freed.push_back(memory);
    sweep(arena);
}

void become_graphs(Arena &arena, char *memory)
{
    Block &block = arena.blocks.find(memory)->second;
    arena.pool.used -= block.size;
    arena.plain += block.size;
    arena.graphs += block.size;
    block.pooled = false;
    block.graphs = true;
}

std::map<char *, Block>::iterator find_used(Arena &arena, const void *memory)
{
    auto block = arena.blocks.find((char *)memory);
    return block != arena.blocks.end() && block->second.kind == USED ? block : arena.blocks.end();
}

} // namespace emulation
