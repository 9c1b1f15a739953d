/*
 * Running kernels: blocks one after another, the threads of a block one by one, each
 * as far as it can, in the order that SHARD_CUDA_EMULATION_ORDER names. A thread that
 * is sure of another's work without a barrier between is right in one order at most.
 *
 * A thread that ends without having waited leaves its fiber to the next one, so that
 * kernels without barriers cost a function call a thread.
 */
#include "cuda_runtime.h"
#include "emulation.h"
#include "fiber.h"

#include <algorithm>
#include <cxxabi.h>
#include <dlfcn.h>
#include <map>
#include <numeric>
#include <stdio.h>
#include <stdlib.h>

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace emulation
{

/* ---- orders ---- */

/* The numbers below n in the order that was asked for. */
struct Order {
    uint64_t n, stride = 1, start = 0;

    explicit Order(uint64_t n_) : n(n_)
    {
        static const std::string kind = setting("ORDER", "forward");
        if (kind == "reverse") {
            stride = n - 1;
            start = n - 1;
        } else if (kind == "shuffled") {
            stride = n * 5 / 8;
            while (std::gcd(stride, n) != 1)
                stride++;
            start = n / 3;
        } else if (kind != "forward")
            die("SHARD_CUDA_EMULATION_ORDER is forward, reverse or shuffled, not %s", kind.c_str());
    }
    uint64_t operator[](uint64_t i) const
    {
        return (uint64_t)(((unsigned __int128)i * stride + start) % n);
    }
};

/* ---- the block that runs ---- */

enum State { RUNS, AT_BARRIER, AT_SHUFFLE, AT_BALLOT, ENDED };

struct Thread {
    Fiber *fiber; /* while it has begun and not ended */
    uint3 index;
    State state;
    unsigned mask; /* of a warp's exchange */
    int source;
    uint64_t value, result;
};

struct Warp {
    unsigned alive, waiting; /* bits of its lanes: those that have not ended, and those in an exchange */
};

static struct Block {
    const Kernel *kernel;
    std::vector<Thread> threads;
    std::vector<Warp> warps;
    std::vector<unsigned> ready;           /* threads that can go on, from `next` on */
    std::vector<unsigned> everyone, lanes; /* numbers of all threads, and of a warp's lanes, in their order */
    size_t next;
    unsigned current;
    unsigned ended, arrived, voted;
} block;

static const void *running_function;
static const char *running_what = "nothing";

void set_running(const char *what, const void *function)
{
    running_what = what;
    running_function = function;
}

/* Most kernels are static: their names are in the debugging information alone. */
std::string running()
{
    Dl_info info;
    if (!running_function || !dladdr(running_function, &info))
        return running_what;
    char line[512];
    unsigned long offset = (unsigned long)((const char *)running_function - (const char *)info.dli_fbase);
    snprintf(line, sizeof line, "addr2line -f -C -e '%s' 0x%lx 2>/dev/null", info.dli_fname, offset);
    std::string name;
    if (FILE *pipe = popen(line, "r")) {
        if (fgets(line, sizeof line, pipe))
            name.assign(line, strcspn(line, "\n"));
        pclose(pipe);
    }
    if (name.empty() || name[0] == '?')
        name = std::string(info.dli_fname) + "+" + std::to_string(offset);
    return "kernel " + name;
}

static std::string where(unsigned number)
{
    char text[160];
    const Thread &thread = block.threads[number];
    snprintf(text, sizeof text, "block (%u, %u, %u), thread (%u, %u, %u)", blockIdx.x, blockIdx.y, blockIdx.z, thread.index.x,
             thread.index.y, thread.index.z);
    return text;
}

/* Where the next thread goes on or, idle, where it begins; NULL while none can go on. */
static Fiber *next_fiber()
{
    if (block.next == block.ready.size())
        return nullptr;
    Fiber *fiber = block.threads[block.ready[block.next]].fiber;
    if (!fiber)
        return idle_fiber();
    block.next++;
    if (block.next > 4096 && block.next == block.ready.size()) {
        block.ready.clear();
        block.next = 0;
    }
    return fiber;
}

static void wait_here(Thread &self)
{
    unsigned number = block.current;
    Fiber *next = next_fiber();
    if (!next)
        suspend(self.fiber);
    else if (next != self.fiber)
        hand_over(self.fiber, next);
    block.current = number;
    threadIdx = self.index;
}

static void make_ready(unsigned number)
{
    block.threads[number].state = RUNS;
    block.ready.push_back(number);
}

int sync_threads(Vote vote, bool predicate)
{
    Thread &self = block.threads[block.current];
    unsigned size = (unsigned)block.threads.size();
    if (block.ended)
        die("%s: %s waits at __syncthreads after %u threads of its block have ended", running().c_str(),
            where(block.current).c_str(), block.ended);
    self.state = AT_BARRIER;
    block.arrived++;
    block.voted += predicate;
    if (block.arrived == size) {
        int result = vote == VOTE_COUNT ? (int)block.voted : vote == VOTE_AND ? block.voted == size : block.voted > 0;
        block.arrived = block.voted = 0;
        for (unsigned number : block.everyone) {
            block.threads[number].result = (uint64_t)result;
            make_ready(number);
        }
    }
    wait_here(self);
    return (int)self.result;
}

/* ---- a warp's exchanges ---- */

int lane()
{
    return (int)(block.current % 32);
}

/* If all lanes of the mask that have not ended are there: does it and lets them go on. */
static void try_exchange(unsigned number, unsigned mask, State state)
{
    Warp &warp = block.warps[number];
    unsigned first = number * 32, members = warp.alive & mask;
    auto there = [&](unsigned lane) { return warp.alive >> lane & 1; };
    if (members & ~warp.waiting)
        return;
    unsigned ballots = 0;
    for (unsigned lane = 0; lane < 32; lane++) {
        if (!(members >> lane & 1))
            continue;
        Thread &thread = block.threads[first + lane];
        if (thread.state != state || thread.mask != mask)
            return;
        if (state == AT_SHUFFLE && !there((unsigned)thread.source))
            die("%s: %s reads lane %d of its warp, which is not there", running().c_str(), where(first + lane).c_str(),
                thread.source);
        ballots |= (unsigned)(thread.value & 1) << lane;
    }
    warp.waiting &= ~members;
    size_t waiting = block.ready.size();
    for (unsigned lane : block.lanes) {
        if (!(members >> lane & 1))
            continue;
        Thread &thread = block.threads[first + lane];
        thread.result = state == AT_SHUFFLE ? block.threads[first + (unsigned)thread.source].value : ballots;
        make_ready(first + lane);
    }
    /* In forward order a warp runs ahead of the others as far as it can, with its stacks in the cache. In the other orders
     * all warps keep step. */
    static const bool ahead = setting("ORDER", "forward") == "forward";
    if (ahead)
        std::rotate(block.ready.begin() + (ptrdiff_t)block.next, block.ready.begin() + (ptrdiff_t)waiting, block.ready.end());
}

static uint64_t exchange(State state, unsigned mask, uint64_t value, int source)
{
    Thread &self = block.threads[block.current];
    if (!(mask >> lane() & 1))
        die("%s: %s is not in the mask 0x%08x of its own exchange", running().c_str(), where(block.current).c_str(), mask);
    if (source < 0 || source > 31 || !(mask >> source & 1))
        die("%s: %s reads lane %d of its warp, which is not in the mask 0x%08x", running().c_str(), where(block.current).c_str(),
            source, mask);
    self.state = state;
    self.mask = mask;
    self.value = value;
    self.source = source;
    block.warps[block.current / 32].waiting |= 1u << lane();
    try_exchange(block.current / 32, mask, state);
    wait_here(self);
    return self.result;
}

uint64_t shuffle(unsigned mask, uint64_t value, int source)
{
    return exchange(AT_SHUFFLE, mask, value, source);
}

unsigned ballot(unsigned mask, bool predicate)
{
    return (unsigned)exchange(AT_BALLOT, mask, predicate, lane());
}

/* ---- blocks ---- */

static void end_thread()
{
    unsigned number = block.current, first = number / 32 * 32;
    Warp &warp = block.warps[number / 32];
    block.threads[number].state = ENDED;
    warp.alive &= ~(1u << number % 32);
    block.threads[number].fiber = nullptr;
    block.ended++;
    if (block.arrived)
        die("%s: %s has ended while %u threads of its block wait at __syncthreads", running().c_str(), where(number).c_str(),
            block.arrived);
    for (unsigned lane = 0; lane < 32 && warp.waiting >> lane; lane++) {
        const Thread &thread = block.threads[first + lane];
        if (warp.waiting >> lane & 1)
            try_exchange(first / 32, thread.mask, thread.state);
    }
}

/* What a fiber does: threads that have not begun, until one comes that has. */
static void run_threads(Fiber *self)
{
    while (block.next < block.ready.size() && !block.threads[block.ready[block.next]].fiber) {
        block.current = block.ready[block.next++];
        Thread &thread = block.threads[block.current];
        thread.fiber = self;
        threadIdx = thread.index;
        block.kernel->run_thread();
        end_thread();
    }
}

[[noreturn]] static void report_deadlock()
{
    static const char *const doing[] = {"", "at __syncthreads", "in a shuffle of its warp", "in a vote or __syncwarp of its warp",
                                        ""};
    std::string text;
    int told = 0;
    for (unsigned number = 0; number < block.threads.size() && told < 4; number++) {
        const Thread &thread = block.threads[number];
        bool differs =
            number == 0 || thread.state != block.threads[number - 1].state || thread.mask != block.threads[number - 1].mask;
        if (thread.state == ENDED || !differs)
            continue;
        text += "; " + where(number) + " and on: " + doing[thread.state];
        if (thread.state != AT_BARRIER)
            text += " with mask " + std::to_string(thread.mask);
        told++;
    }
    die("%s: its threads wait for one another%s", running().c_str(), text.c_str());
}

static void run_block()
{
    block.ready.assign(block.everyone.begin(), block.everyone.end());
    block.next = block.ended = block.arrived = block.voted = 0;
    for (Thread &thread : block.threads) {
        thread.fiber = nullptr;
        thread.state = RUNS;
    }
    for (unsigned warp = 0; warp < block.warps.size(); warp++) {
        unsigned lanes = (unsigned)block.threads.size() - warp * 32;
        block.warps[warp] = {lanes < 32 ? (1u << lanes) - 1 : 0xffffffffu, 0};
    }
    while (Fiber *fiber = next_fiber())
        resume(fiber);
    if (block.ended < block.threads.size())
        report_deadlock();
}

static void run_kernel(const Kernel &kernel, dim3 grid, dim3 size)
{
    set_running("kernel", kernel.function);
    for (const void *word : kernel.words)
        check_pointer(word);
    unsigned threads = size.x * size.y * size.z;
    set_fiber_function(run_threads);
    block.kernel = &kernel;
    block.threads.assign(threads, Thread());
    block.warps.resize((threads + 31) / 32);
    block.everyone.clear();
    block.lanes.clear();
    Order thread_order(threads), lane_order(32), block_order((uint64_t)grid.x * grid.y * grid.z);
    for (unsigned i = 0; i < threads; i++) {
        block.threads[i].index = {i % size.x, i / size.x % size.y, i / size.x / size.y};
        block.everyone.push_back((unsigned)thread_order[i]);
    }
    for (unsigned i = 0; i < 32; i++)
        block.lanes.push_back((unsigned)lane_order[i]);
    blockDim = size;
    gridDim = grid;
    for (uint64_t i = 0; i < block_order.n; i++) {
        uint64_t number = block_order[i];
        blockIdx = {(unsigned)(number % grid.x), (unsigned)(number / grid.x % grid.y), (unsigned)(number / grid.x / grid.y)};
        run_block();
    }
    check_guards();
}

/* A kernel's code is loaded to the device by its first launch. */
static bool load(const void *function)
{
    enum { CODE_BYTES = 16 << 10 };
    static auto &code = *new std::map<std::pair<int, const void *>, LibraryMemory>;
    return code[{current_device(), function}].take(CODE_BYTES);
}

cudaError_t launch(const cudaLaunchConfig_t *config, std::shared_ptr<const Kernel> kernel)
{
    dim3 grid = config->gridDim, size = config->blockDim;
    return run_call([&] {
        bool fits = (uint64_t)size.x * size.y * size.z <= 1024 && size.x <= 1024 && size.y <= 1024 && size.z <= 64 &&
                    grid.x <= 2147483647 && grid.y <= 65535 && grid.z <= 65535;
        if (!fits || size.x == 0 || size.y == 0 || size.z == 0 || grid.x == 0 || grid.y == 0 || grid.z == 0)
            return cudaErrorInvalidConfiguration;
        if (config->dynamicSmemBytes || config->numAttrs || !kernel->function)
            return cudaErrorInvalidValue;
        auto stream = find_stream(config->stream);
        if (!stream || device_of(*stream) != current_device())
            return cudaErrorInvalidResourceHandle;
        if (!load(kernel->function))
            return cudaErrorMemoryAllocation;
        return enqueue(config->stream, "kernel", [=] { run_kernel(*kernel, grid, size); });
    });
}

} // namespace emulation
