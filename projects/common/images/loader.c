/*
 * Batches that are loaded ahead. The steps of an epoch use a ring of slots. The unit of work is one sample of one
 * slot, taken in order under the lock and made without it. All data that changes while workers run is in `ring` and
 * accessed under its lock, except for the samples' memory.
 */
#include "loader.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ERROR_BYTES 512

typedef struct slot {
    loader_batch batch;
    uint8_t *images;
    int64_t *labels;
    int64_t start;        /* position in the epoch of its first sample */
    int64_t taken, made;  /* of batch.size samples */
    int64_t error_sample; /* the first sample that failed, -1 */
    shard_status status;  /* of that sample */
    bool fatal;           /* an error that is not an image's */
    char text[ERROR_BYTES];
} slot;

/* A thread's own memory for making samples. */
typedef struct workbench {
    image_file file;
    image picture;
    resampler scratch;
} workbench;

struct loader {
    loader_options options;
    shard_group_sampler *sampling;
    int64_t steps, sample_bytes;
    int64_t most; /* samples in a slot */
    pthread_t *threads;
    int threads_started;
    workbench own; /* of the caller's thread, when there are no workers */
    slot *slots;
    int64_t slot_count;
    shard_event *copied; /* of the batch that the caller uses */
    struct {
        pthread_mutex_t lock;
        pthread_cond_t work, ready;
        int64_t epoch;
        int64_t next_step;   /* the next step for workers; its slot may have begun */
        int64_t oldest_step; /* in use by the caller, or the next one */
        int64_t busy;        /* samples being made now */
        int64_t bad;         /* in this epoch, of the batches that loader_next has returned */
        bool begun;          /* next_step's slot is set up */
        bool held;           /* the caller uses oldest_step's batch */
        bool running, closing;
        shard_status failed;
        char text[ERROR_BYTES];
    } ring;
};

static slot *slot_of(const loader *loading, int64_t step)
{
    return loading->slots + step % loading->slot_count;
}

/* ---- one sample ---- */

static shard_status make_from_file(const loader *loading, workbench *bench, int64_t epoch, int64_t sample, uint8_t *out)
{
    const loader_options *options = &loading->options;
    int64_t height, width;
    shard_status status = options->source.read(options->source.of, sample, &bench->file);
    if (status == SHARD_OK)
        status = image_read_size(&bench->file, &height, &width);
    if (status != SHARD_OK)
        return status;
    random_stream random = random_start(options->seed, (uint64_t)epoch, (uint64_t)sample);
    image_box box = options->training ? training_box(height, width, &options->augment, &random)
                                      : validation_box(height, width, options->image_size, &options->augment);
    bool flip = options->training && options->augment.flip && random_uniform(&random) < 0.5;
    status = image_decode(&bench->file, box_eighths(box, options->image_size), &bench->picture);
    if (status != SHARD_OK)
        return status;
    box = box_in_decoded(box, height, width, &bench->picture);
    return resample(&bench->picture, box, options->image_size, flip, out, &bench->scratch);
}

static int64_t label_of(const loader *loading, int64_t sample)
{
    const loader_options *options = &loading->options;
    return options->source.read ? options->source.label(options->source.of, sample) : synthetic_label(&options->made_up, sample);
}

static shard_status make_sample(const loader *loading, workbench *bench, int64_t epoch, int64_t position, uint8_t *out,
                                int64_t *label)
{
    const loader_options *options = &loading->options;
    int64_t sample = shard_group_sampler_sample_at(loading->sampling, epoch, position);
    *label = label_of(loading, sample);
    if (!options->source.read) {
        synthetic_image(&options->made_up, sample, options->image_size, out);
        return SHARD_OK;
    }
    shard_status status = make_from_file(loading, bench, epoch, sample, out);
    if (status != SHARD_OK) {
        *label = LOADER_IGNORED;
        for (int64_t i = 0; i < loading->sample_bytes; i++)
            out[i] = image_level((int)(i % 3), 0);
    }
    return status;
}

/* ---- the ring; these functions are called under the lock ---- */

static void begin_slot(loader *loading, int64_t step)
{
    slot *into = slot_of(loading, step);
    shard_range part = shard_group_sampler_local_range(loading->sampling, step);
    into->start = part.start;
    into->taken = into->made = 0;
    into->error_sample = -1;
    into->status = SHARD_OK;
    into->fatal = false;
    into->batch = (loader_batch){
        .step = step,
        .size = part.size,
        .images = into->images,
        .labels = into->labels,
        .copied = loading->copied,
    };
}

/* Takes the next sample to make; false if there is no work now. */
static bool take_sample(loader *loading, slot **into, int64_t *sample)
{
    while (loading->ring.running && loading->ring.failed == SHARD_OK && loading->ring.next_step < loading->steps &&
           loading->ring.next_step < loading->ring.oldest_step + loading->slot_count) {
        slot *candidate = slot_of(loading, loading->ring.next_step);
        if (!loading->ring.begun)
            begin_slot(loading, loading->ring.next_step);
        loading->ring.begun = true;
        if (candidate->taken < candidate->batch.size) {
            *into = candidate;
            *sample = candidate->taken++;
            loading->ring.busy++;
            return true;
        }
        loading->ring.next_step++;
        loading->ring.begun = false;
        pthread_cond_signal(&loading->ring.ready); /* the slot may have been an empty one */
    }
    return false;
}

/* Moves this thread's error to the slot. */
static void note_error(slot *into, int64_t sample, shard_status status)
{
    bool image_at_fault = status == SHARD_ERROR_FORMAT || status == SHARD_ERROR_IO;
    if (image_at_fault)
        fprintf(stderr, "damaged image: %s\n", shard_last_error());
    into->batch.bad += image_at_fault;
    into->fatal |= !image_at_fault;
    if (into->error_sample < 0 || sample < into->error_sample) {
        into->error_sample = sample;
        into->status = status;
        snprintf(into->text, sizeof into->text, "%s", shard_last_error());
    }
    shard_clear_error();
}

/* Makes one sample, with the lock released. */
static void work_once(loader *loading, workbench *bench, slot *into, int64_t sample)
{
    int64_t epoch = loading->ring.epoch;
    pthread_mutex_unlock(&loading->ring.lock);
    uint8_t *out = into->images + sample * loading->sample_bytes;
    shard_status status = make_sample(loading, bench, epoch, into->start + sample, out, into->labels + sample);
    pthread_mutex_lock(&loading->ring.lock);
    if (status != SHARD_OK)
        note_error(into, sample, status);
    loading->ring.busy--;
    if (++into->made == into->batch.size || loading->ring.busy == 0)
        pthread_cond_signal(&loading->ring.ready);
}

static bool is_made(const loader *loading, int64_t step)
{
    bool begun = step < loading->ring.next_step || (step == loading->ring.next_step && loading->ring.begun);
    const slot *wanted = slot_of(loading, step);
    return begun && wanted->made == wanted->batch.size;
}

static void free_workbench(workbench *bench)
{
    image_file_free(&bench->file);
    image_free(&bench->picture);
    resampler_free(&bench->scratch);
}

static void *worker(void *argument)
{
    loader *loading = argument;
    workbench bench = {0};
    pthread_mutex_lock(&loading->ring.lock);
    while (!loading->ring.closing) {
        slot *into;
        int64_t sample;
        if (take_sample(loading, &into, &sample))
            work_once(loading, &bench, into, sample);
        else
            pthread_cond_wait(&loading->ring.work, &loading->ring.lock);
    }
    pthread_mutex_unlock(&loading->ring.lock);
    free_workbench(&bench);
    return NULL;
}

static void wait_until_made(loader *loading, int64_t step)
{
    while (!is_made(loading, step)) {
        slot *into;
        int64_t sample;
        if (loading->threads_started > 0)
            pthread_cond_wait(&loading->ring.ready, &loading->ring.lock);
        else if (take_sample(loading, &into, &sample))
            work_once(loading, &loading->own, into, sample);
    }
}

/* ---- the caller's functions ---- */

/* Counts the slot's damaged images; above the limit each further call fails. */
static void judge(loader *loading, const slot *made)
{
    loading->ring.bad += made->batch.bad;
    if (made->status == SHARD_OK || (!made->fatal && loading->ring.bad <= loading->options.skip_bad))
        return;
    loading->ring.failed = made->status;
    snprintf(loading->ring.text, sizeof loading->ring.text, "%s", made->text);
}

shard_status loader_next(loader *loading, const loader_batch **batch)
{
    *batch = NULL;
    if (!loading || shard_last_status() != SHARD_OK)
        return loading ? shard_last_status() : shard_error(SHARD_ERROR_ARGUMENT, "loader_next: the loader is NULL");
    shard_status status = shard_event_synchronize(loading->copied); /* before workers write to that memory */
    if (status != SHARD_OK)
        return status;
    pthread_mutex_lock(&loading->ring.lock);
    if (loading->ring.held) {
        loading->ring.held = false;
        loading->ring.oldest_step++;
        pthread_cond_broadcast(&loading->ring.work);
    }
    int64_t step = loading->ring.oldest_step;
    if (loading->ring.running && loading->ring.failed == SHARD_OK && step < loading->steps) {
        wait_until_made(loading, step);
        judge(loading, slot_of(loading, step));
        if (loading->ring.failed == SHARD_OK) {
            loading->ring.held = true;
            *batch = &slot_of(loading, step)->batch;
        }
    }
    shard_status failed = loading->ring.failed;
    pthread_mutex_unlock(&loading->ring.lock);
    return failed == SHARD_OK ? SHARD_OK : shard_error(failed, "%s", loading->ring.text);
}

shard_status loader_start(loader *loading, int64_t epoch, int64_t first_step)
{
    if (!loading)
        return shard_error(SHARD_ERROR_ARGUMENT, "loader_start: the loader is NULL");
    shard_status status = shard_group_sampler_seek(loading->sampling, epoch, first_step);
    if (status == SHARD_OK)
        status = shard_event_synchronize(loading->copied);
    if (status != SHARD_OK)
        return status;
    pthread_mutex_lock(&loading->ring.lock);
    loading->ring.running = false;
    while (loading->ring.busy > 0)
        pthread_cond_wait(&loading->ring.ready, &loading->ring.lock);
    loading->ring.epoch = epoch;
    loading->ring.next_step = loading->ring.oldest_step = first_step;
    loading->ring.begun = loading->ring.held = false;
    loading->ring.bad = 0;
    loading->ring.running = true;
    pthread_cond_broadcast(&loading->ring.work);
    pthread_mutex_unlock(&loading->ring.lock);
    return SHARD_OK;
}

void loader_labels(const loader *loading, int64_t epoch, int64_t first, int64_t count, int64_t *labels)
{
    for (int64_t i = 0; i < count; i++)
        labels[i] = label_of(loading, shard_group_sampler_sample_at(loading->sampling, epoch, first + i));
}

int64_t loader_steps(const loader *loading)
{
    return loading->steps;
}

static shard_status check_options(const loader_options *options, int64_t samples)
{
    if (options->batch < 1 || options->image_size < 1 || options->image_size > 65536 || options->workers < 0)
        return shard_error(SHARD_ERROR_ARGUMENT,
                           "loader: batch %" PRId64 ", image size %" PRId64 ", %d workers: at least 1, 1 (at most 65536) and 0",
                           options->batch, options->image_size, options->workers);
    if (options->ranks < 1 || options->rank < 0 || options->rank >= options->ranks)
        return shard_error(SHARD_ERROR_ARGUMENT, "loader: rank %d of %d", options->rank, options->ranks);
    if (samples < 0 || (!options->source.read && options->made_up.num_classes < 1))
        return shard_error(SHARD_ERROR_ARGUMENT, "loader: %" PRId64 " synthetic images of %" PRId64 " classes", samples,
                           options->made_up.num_classes);
    double shift = options->augment.shift, crop_scale = options->augment.crop_scale;
    if (!(shift >= 0 && shift < 0.5) || !(crop_scale > 0 && crop_scale <= 1))
        return shard_error(SHARD_ERROR_ARGUMENT, "loader: crop scale %g is not in (0, 1], or shift %g not in [0, 0.5)",
                           crop_scale, shift);
    return SHARD_OK;
}

static shard_status make_slots(loader *loading)
{
    const loader_options *options = &loading->options;
    int64_t most = shard_group_sampler_max_local_batch(loading->sampling), bytes;
    int64_t ahead = options->workers == 0 ? 0 : options->prefetch < 1 ? 1 : options->prefetch;
    loading->slots = calloc((size_t)ahead + 1, sizeof *loading->slots);
    loading->slot_count = loading->slots ? ahead + 1 : 0;
    bool made = loading->slots && !__builtin_mul_overflow(most, loading->sample_bytes, &bytes);
    for (int64_t i = 0; i < loading->slot_count && made; i++) {
        slot *into = loading->slots + i;
        into->images = shard_device_allocate_host(options->device, (size_t)bytes);
        into->labels = into->images ? shard_device_allocate_host(options->device, (size_t)most * sizeof *into->labels) : NULL;
        made = into->labels != NULL;
    }
    loading->most = most;
    return made ? SHARD_OK
                : shard_error(SHARD_ERROR_MEMORY,
                              "loader: no memory for %" PRId64 " batches of %" PRId64 " images of %" PRId64 " x %" PRId64
                              " pixels; take a smaller batch or prefetch fewer",
                              ahead + 1, most, options->image_size, options->image_size);
}

/* Signals from outside are handled by the main thread, so workers block them. Synchronous faults of a worker stay
 * its own, so that the tool that reports them (a sanitizer, a debugger's handler) sees them. */
static void block_signals(sigset_t *before)
{
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS};
    sigset_t blocked;
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        sigdelset(&blocked, own[i]);
    pthread_sigmask(SIG_SETMASK, &blocked, before);
}

static shard_status start_workers(loader *loading)
{
    int wanted = loading->options.workers, error = 0;
    loading->threads = calloc((size_t)wanted + 1, sizeof *loading->threads);
    if (!loading->threads)
        return shard_error(SHARD_ERROR_MEMORY, "loader: no memory for %d workers", wanted);
    sigset_t before;
    block_signals(&before);
    while (loading->threads_started < wanted && error == 0) {
        error = pthread_create(loading->threads + loading->threads_started, NULL, worker, loading);
        loading->threads_started += error == 0;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error)
        return shard_error(SHARD_ERROR_MEMORY, "loader: cannot start worker thread %d of %d: %s", loading->threads_started + 1,
                           wanted, strerror(error));
    return SHARD_OK;
}

loader *loader_open(const loader_options *options)
{
    int64_t samples = options->source.read ? options->source.images : options->made_up.samples;
    if (check_options(options, samples) != SHARD_OK)
        return NULL;
    loader *loading = calloc(1, sizeof *loading);
    if (!loading) {
        shard_error(SHARD_ERROR_MEMORY, "loader: no memory");
        return NULL;
    }
    loading->options = *options;
    loading->sampling =
        shard_group_sampler_create(samples, .batch = options->batch, .ranks = options->ranks, .rank = options->rank,
                                   .seed = options->seed, .shuffle = options->training, .last_batch = SHARD_LAST_BATCH_EXACT);
    loading->steps = shard_group_sampler_steps(loading->sampling);
    loading->sample_bytes = options->image_size * options->image_size * 3;
    pthread_mutex_init(&loading->ring.lock, NULL);
    pthread_cond_init(&loading->ring.work, NULL);
    pthread_cond_init(&loading->ring.ready, NULL);
    loading->copied = shard_event_create(options->device);
    if (!loading->sampling || !loading->copied || make_slots(loading) != SHARD_OK || start_workers(loading) != SHARD_OK) {
        loader_close(loading);
        return NULL;
    }
    return loading;
}

void loader_close(loader *loading)
{
    if (!loading)
        return;
    pthread_mutex_lock(&loading->ring.lock);
    loading->ring.closing = true;
    pthread_cond_broadcast(&loading->ring.work);
    pthread_mutex_unlock(&loading->ring.lock);
    for (int i = 0; i < loading->threads_started; i++)
        pthread_join(loading->threads[i], NULL);
    shard_device *device = loading->options.device;
    if (loading->copied)
        shard_event_synchronize(loading->copied);
    shard_event_destroy(loading->copied);
    for (int64_t i = 0; i < loading->slot_count; i++) {
        slot *of = loading->slots + i;
        shard_device_free_host(device, of->images, (size_t)(loading->most * loading->sample_bytes));
        shard_device_free_host(device, of->labels, (size_t)loading->most * sizeof *of->labels);
    }
    pthread_mutex_destroy(&loading->ring.lock);
    pthread_cond_destroy(&loading->ring.work);
    pthread_cond_destroy(&loading->ring.ready);
    free_workbench(&loading->own);
    shard_group_sampler_destroy(loading->sampling);
    free(loading->slots);
    free(loading->threads);
    free(loading);
}
