/* Streams and what is captured of them: between stream.cpp and graph.cpp. */
#ifndef CUDA_EMULATION_STREAM_H
#define CUDA_EMULATION_STREAM_H

#include "emulation.h"

#include <deque>
#include <set>
#include <vector>

namespace emulation
{

/* Queued: something to do until it returns true, or a place that must be passed. */
struct Work {
    const char *what;
    std::function<bool()> run; /* empty: waits for `after` */
    Place after;
    bool polled = false;
};

struct Arena;

/* What a graph's allocation nodes have: addresses that stay the graph's as long as it is there. */
struct GraphMemory {
    std::vector<std::pair<Arena *, char *>> all;
    std::set<char *> unfreed;  /* no node frees them */
    std::set<char *> standing; /* of those, allocated by the last launch and not freed since */
    Place launched;            /* where the last launch ends */
    ~GraphMemory();
};

/* Queues the end of an allocation's life; memory.cpp. */
cudaError_t free_later(const std::shared_ptr<Stream> &stream, char *memory);

/* What is being captured, in the order of the calls, and from where. */
struct Capture {
    std::vector<Work> work;
    std::shared_ptr<GraphMemory> memory = std::make_shared<GraphMemory>();
    std::shared_ptr<Stream> origin;
    enum cudaStreamCaptureMode mode;
    uint64_t thread;
    bool invalid = false;
};

struct Stream : std::enable_shared_from_this<Stream> {
    int device;
    bool blocking; /* orders itself with the device's default stream */
    bool running = false;
    std::deque<Work> queue;
    uint64_t queued = 0, done = 0; /* pieces of work since the beginning */
    uint64_t seen = 0;             /* those that the host has synchronized with */
    uint64_t last_call = 0;        /* grows over all streams */
    std::shared_ptr<Capture> capture;
    size_t captured = 0; /* of the capture's work: up to this stream's last */
    size_t joined = 0;   /* ... and up to what its origin waits for */
};

/* Puts work into the stream's queue, or its capture. */
cudaError_t put(const std::shared_ptr<Stream> &stream, Work work);
/* Every stream there is, the one that was called last first. */
std::vector<std::shared_ptr<Stream>> all_streams();

} // namespace emulation

#endif
