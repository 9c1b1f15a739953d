/*
 * Streams and events. Work runs in the thread that waits for it, and only what it
 * waits for: the stream up to there, and what that was told to wait for. So host code
 * that forgets to wait sees what was there before, and streams that forget an event
 * run in the wrong order.
 *
 * Work that waits for other processes (a collective's) can't rely on somebody waiting
 * in this one: other ranks may be held up until it has run. While there is such work, a
 * thread runs the streams whenever there have been no calls for a moment, as a GPU would.
 */
#include "seen.h"
#include "stream.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <thread>

#include <sched.h>

using namespace emulation;
using Clock = std::chrono::steady_clock;

struct CUevent_st {
    bool timing = true;
    std::shared_ptr<Place> recorded; /* none: complete */
    std::shared_ptr<Clock::time_point> time = std::make_shared<Clock::time_point>();
    std::weak_ptr<Capture> capture; /* recorded in one, at `captured`, by `stream` */
    std::weak_ptr<Stream> stream;
    size_t captured = 0;
};

namespace emulation
{

static auto &streams = *new std::map<cudaStream_t, std::shared_ptr<Stream>>;
static auto &defaults = *new std::map<int, std::shared_ptr<Stream>>;
static auto &ending = *new std::vector<std::shared_ptr<Stream>>; /* destroyed, with work left */
static auto &events = *new std::map<cudaEvent_t, std::unique_ptr<CUevent_st>>;
static uint64_t calls;
static std::atomic<Clock::rep> last_use;
static size_t polled; /* pieces of queued work that wait for other processes */

/* ---- queues ---- */

bool Place::passed() const
{
    return !stream || stream->done >= number;
}

bool Place::seen() const
{
    return !stream || stream->seen >= number;
}

Place end_of(const std::shared_ptr<Stream> &stream)
{
    return {stream, stream->queued};
}

int device_of(const Stream &stream)
{
    return stream.device;
}

std::shared_ptr<Stream> find_stream(cudaStream_t handle)
{
    if (handle == nullptr || handle == cudaStreamLegacy) {
        auto &stream = defaults[current_device()];
        if (!stream) {
            stream = std::make_shared<Stream>();
            stream->device = current_device();
            stream->blocking = true;
        }
        return stream;
    }
    auto found = streams.find(handle);
    return found == streams.end() ? nullptr : found->second;
}

std::vector<std::shared_ptr<Stream>> all_streams()
{
    std::vector<std::shared_ptr<Stream>> all = ending;
    for (auto &entry : streams)
        all.push_back(entry.second);
    for (auto &entry : defaults)
        all.push_back(entry.second);
    std::sort(all.begin(), all.end(), [](auto &a, auto &b) { return a->last_call > b->last_call; });
    return all;
}

/* Runs what it can up to the place: false if that isn't passed yet. */
static bool advance(const Place &place)
{
    Stream &stream = *place.stream;
    if (stream.running) /* one of its own pieces asks */
        return place.passed();
    stream.running = true;
    while (stream.done < place.number) {
        Work &work = stream.queue.front();
        set_running(work.what, nullptr);
        bool done = work.run ? work.run() : work.after.passed() || advance(work.after);
        if (!done)
            break;
        polled -= work.polled;
        stream.queue.pop_front();
        stream.done++;
    }
    stream.running = false;
    return place.passed();
}

static void end_streams()
{
    for (size_t i = ending.size(); i-- > 0;)
        if (ending[i]->queue.empty())
            ending.erase(ending.begin() + (ptrdiff_t)i);
}

/* Runs at least this place; others too where it can't go on without, as it waits for another process. */
static void run_all(const Place &place, bool others)
{
    if (place.passed() && !others)
        return;
    OpenMemory open;
    for (;;) {
        if (others)
            for (auto &stream : all_streams())
                advance(end_of(stream));
        if (advance(place))
            break;
        others = true;
        mutex().unlock(); /* another thread's call may end what this one waits for */
        sched_yield();
        mutex().lock();
    }
    end_streams();
}

void run_up_to(const Place &place)
{
    static const std::string kind = setting("QUEUE", "late");
    if (kind != "late" && kind != "others" && kind != "eager")
        die("SHARD_CUDA_EMULATION_QUEUE is late, others or eager, not %s", kind.c_str());
    emulation_has_seen.waits += !place.passed();
    run_all(place, kind == "others");
    keep_to_thresholds();
}

void synchronize(const Place &place)
{
    run_up_to(place);
    if (place.passed() && place.stream->seen < place.number)
        place.stream->seen = place.number;
}

void run_device(int device)
{
    for (auto &stream : all_streams())
        if (stream->device == device)
            synchronize(end_of(stream));
}

/* Runs everything after a moment without calls, while work that waits for other processes is queued. */
static void run_when_idle()
{
    const auto moment = std::chrono::milliseconds(5);
    for (;;) {
        std::this_thread::sleep_for(moment);
        if (Clock::now().time_since_epoch().count() - last_use < Clock::duration(moment).count())
            continue;
        std::lock_guard<std::recursive_mutex> locked(mutex());
        if (polled == 0)
            continue;
        OpenMemory open;
        for (auto &stream : all_streams())
            advance(end_of(stream));
        end_streams();
    }
}

static void put_at_end(const std::shared_ptr<Stream> &stream, Work work)
{
    stream->queue.push_back(std::move(work));
    stream->queued++;
    stream->last_call = ++calls;
}

/* The default stream waits for all blocking ones, and they for it. */
static void order_with_default(const std::shared_ptr<Stream> &stream)
{
    auto found = defaults.find(stream->device);
    if (found == defaults.end() || !stream->blocking)
        return;
    auto wait = [](const std::shared_ptr<Stream> &waiting, const std::shared_ptr<Stream> &other) {
        if (waiting != other && other->blocking && other->device == waiting->device && !end_of(other).passed())
            put_at_end(waiting, {"wait", nullptr, end_of(other)});
    };
    if (stream != found->second)
        wait(stream, found->second);
    else
        for (auto &other : all_streams())
            wait(stream, other);
}

cudaError_t put(const std::shared_ptr<Stream> &stream, Work work)
{
    last_use = Clock::now().time_since_epoch().count();
    if (stream->capture) {
        if (stream->capture->invalid)
            return cudaErrorStreamCaptureInvalidated;
        stream->capture->work.push_back(std::move(work));
        stream->captured = stream->capture->work.size();
        return cudaSuccess;
    }
    order_with_default(stream);
    if (work.polled && polled++ == 0) {
        static bool started;
        if (!started)
            std::thread(run_when_idle).detach();
        started = true;
    }
    put_at_end(stream, std::move(work));
    static const bool eager = setting("QUEUE", "late") == "eager";
    if (eager && !stream->running) {
        OpenMemory open;
        advance(end_of(stream));
    }
    return cudaSuccess;
}

static cudaError_t enqueue_any(cudaStream_t handle, const char *what, std::function<bool()> work, bool is_polled)
{
    auto stream = find_stream(handle);
    return stream ? put(stream, {what, std::move(work), {}, is_polled}) : cudaErrorInvalidResourceHandle;
}

cudaError_t enqueue(cudaStream_t stream, const char *what, std::function<void()> work)
{
    return run_call([&] {
        return enqueue_any(
            stream, what,
            [work = std::move(work)] {
                work();
                return true;
            },
            false);
    });
}

cudaError_t enqueue_polled(cudaStream_t stream, const char *what, std::function<bool()> work)
{
    return run_call([&] { return enqueue_any(stream, what, std::move(work), true); });
}

} // namespace emulation

/* ---- streams ---- */

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *pStream, unsigned int flags, int priority)
{
    return run_call([=] {
        (void)priority;
        if (flags & ~(unsigned)cudaStreamNonBlocking)
            return cudaErrorInvalidValue;
        auto stream = std::make_shared<Stream>();
        stream->device = current_device();
        stream->blocking = !(flags & cudaStreamNonBlocking);
        *pStream = (cudaStream_t)stream.get();
        streams[*pStream] = stream;
        return cudaSuccess;
    });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *pStream, unsigned int flags)
{
    return cudaStreamCreateWithPriority(pStream, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t *pStream)
{
    return cudaStreamCreateWithPriority(pStream, cudaStreamDefault, 0);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *leastPriority, int *greatestPriority)
{
    return run_call([=] {
        *leastPriority = 0;
        *greatestPriority = -5;
        return cudaSuccess;
    });
}

cudaError_t cudaStreamDestroy(cudaStream_t handle)
{
    return run_call([=] {
        auto stream = streams.find(handle);
        if (stream == streams.end())
            return cudaErrorInvalidResourceHandle;
        if (!stream->second->queue.empty())
            ending.push_back(stream->second);
        streams.erase(stream);
        return cudaSuccess;
    });
}

/* Runs the body with the stream of a handle that may be waited for. */
template <class Body> static cudaError_t with_stream(cudaStream_t handle, Body body)
{
    return run_call([&] {
        last_use = Clock::now().time_since_epoch().count();
        auto stream = find_stream(handle);
        if (!stream)
            return cudaErrorInvalidResourceHandle;
        cudaError_t error = refuse_in_capture(stream);
        return error == cudaSuccess ? body(stream) : error;
    });
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle)
{
    return with_stream(handle, [](auto &stream) {
        if (stream->blocking && stream->queue.empty())
            order_with_default(stream);
        synchronize(end_of(stream));
        return cudaSuccess;
    });
}

/* Queries find unfinished work unfinished, and finished the next time: they run it, and other streams only
 * where it can't go on without. */
static cudaError_t query(const Place &place)
{
    if (place.passed())
        return cudaSuccess;
    OpenMemory open;
    if (!advance(place)) /* another process waits, perhaps for another stream of this one */
        for (auto &stream : all_streams())
            advance(end_of(stream));
    return cudaErrorNotReady;
}

cudaError_t cudaStreamQuery(cudaStream_t handle)
{
    return with_stream(handle, [](auto &stream) { return query(end_of(stream)); });
}

cudaError_t cudaDeviceSynchronize(void)
{
    return run_call([] {
        cudaError_t error = refuse_in_capture();
        if (error == cudaSuccess)
            run_device(current_device());
        return error;
    });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *userData)
{
    return enqueue(stream, "cudaLaunchHostFunc", [=] { fn(userData); });
}

/* ---- events ---- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags)
{
    return run_call([=] {
        auto made = std::make_unique<CUevent_st>();
        made->timing = !(flags & cudaEventDisableTiming);
        *event = made.get();
        events[*event] = std::move(made);
        return cudaSuccess;
    });
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}

/* Runs the body if the event is one. */
template <class Body> static cudaError_t with_event(cudaEvent_t event, Body body)
{
    return run_call([&] {
        last_use = Clock::now().time_since_epoch().count();
        return events.count(event) ? body() : cudaErrorInvalidResourceHandle;
    });
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    return with_event(event, [=] {
        events.erase(event);
        return cudaSuccess;
    });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle)
{
    return with_event(event, [=] {
        auto stream = find_stream(handle);
        if (!stream)
            return cudaErrorInvalidResourceHandle;
        auto time = std::make_shared<Clock::time_point>();
        cudaError_t error = put(stream, {"cudaEventRecord",
                                         [=] {
                                             *time = Clock::now();
                                             return true;
                                         },
                                         {}});
        if (error != cudaSuccess)
            return error;
        event->capture = stream->capture;
        event->stream = stream;
        event->captured = stream->captured;
        event->time = time;
        event->recorded = stream->capture ? nullptr : std::make_shared<Place>(end_of(stream));
        return cudaSuccess;
    });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned int flags)
{
    return with_event(event, [=] {
        auto stream = find_stream(handle);
        if (!stream)
            return cudaErrorInvalidResourceHandle;
        if (flags != cudaEventWaitDefault)
            return cudaErrorInvalidValue;
        auto capture = event->capture.lock();
        if (capture && capture->invalid)
            return cudaErrorStreamCaptureInvalidated;
        if (capture) {
            if (stream->capture && stream->capture != capture)
                return cudaErrorStreamCaptureMerge;
            auto recorder = event->stream.lock();
            if (recorder && stream == capture->origin)
                recorder->joined = std::max(recorder->joined, event->captured);
            stream->capture = capture;
            return cudaSuccess;
        }
        if (stream->capture)
            return cudaErrorStreamCaptureIsolation;
        if (event->recorded && event->recorded->stream != stream && !event->recorded->passed())
            return put(stream, {"cudaStreamWaitEvent", nullptr, *event->recorded});
        return cudaSuccess;
    });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    return with_event(event, [=] {
        if (event->capture.lock())
            return cudaErrorCapturedEvent;
        if (event->recorded)
            synchronize(*event->recorded);
        return cudaSuccess;
    });
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    return with_event(event, [=] {
        if (event->capture.lock())
            return cudaErrorCapturedEvent;
        return event->recorded ? query(*event->recorded) : cudaSuccess;
    });
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end)
{
    return with_event(start, [=] {
        if (!events.count(end) || !start->timing || !end->timing || !start->recorded || !end->recorded)
            return cudaErrorInvalidResourceHandle;
        if (!start->recorded->passed() || !end->recorded->passed())
            return cudaErrorNotReady;
        *ms = std::chrono::duration<float, std::milli>(*end->time - *start->time).count();
        return cudaSuccess;
    });
}
