/* A save that the power ends. The writes, syncs and the renaming of a save are recorded on all ranks, in one order. For many
 * moments of it the files are made as a disk may have them then: what was not synced is there, missing, torn or in another
 * order. The old checkpoint or the new one loads, bit for bit. */
#include "support/file_calls.h"
#include "support/scratch.h"
#include "support/state.h"

#include "comm/comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

enum { OLD = 100, NEW = 200, CALLS_MOST = 1000, DATA_MOST = 1 << 20, SECTOR = 512, FILE_MOST = 1 << 17 };

typedef enum event_kind { WRITE, SIZE, SYNC, SYNC_DIRECTORY, RENAME, OTHER } event_kind;

typedef struct event {
    event_kind kind;
    int rank;
    size_t offset, bytes; /* of a write; bytes: the size that is set */
    size_t data;          /* of a write: its place in the log's data */
} event;

/* In memory that all ranks share. A call is entered before it is made, and has ended when its rank enters another. */
typedef struct record {
    int count;
    size_t used;
    event events[CALLS_MOST];
    unsigned char data[DATA_MOST];
} record;

static record *log_of_save;

static ssize_t enter_call(const file_call *call)
{
    struct stat status = {0};
    event e = {.kind = OTHER, .rank = shard_group_rank(shard_world()), .offset = (size_t)call->offset, .bytes = call->bytes};
    if (call->kind == CALL_PWRITE) {
        e.kind = WRITE;
        e.data = __atomic_fetch_add(&log_of_save->used, call->bytes, __ATOMIC_SEQ_CST);
        ck_assert_uint_le(e.data + call->bytes, DATA_MOST);
        memcpy(log_of_save->data + e.data, call->data, call->bytes);
    } else if (call->kind == CALL_FALLOCATE || call->kind == CALL_FTRUNCATE) {
        e.kind = SIZE;
    } else if (call->kind == CALL_FSYNC) {
        ck_assert_int_eq(fstat(call->descriptor, &status), 0);
        e.kind = S_ISDIR(status.st_mode) ? SYNC_DIRECTORY : SYNC;
    } else if (call->kind == CALL_RENAME) {
        e.kind = RENAME;
    }
    int place = __atomic_fetch_add(&log_of_save->count, 1, __ATOMIC_SEQ_CST);
    ck_assert_int_lt(place, CALLS_MOST);
    log_of_save->events[place] = e;
    return call->kind == CALL_FSYNC ? CALL_LEAVE : CALL_MAKE;
}

static void save_old_and_new(shard_group *world, void *context)
{
    const save_way *way = context;
    shard_tensors *old = make_small_state(world, OLD), *new = make_small_state(world, NEW);
    check_ok(shard_save(old, scratch_path("old.safetensors"), NULL));
    check_ok(shard_save(old, scratch_path("save.safetensors"), NULL));
    check_ok(shard_barrier(world));
    file_calls_watch(enter_call);
    check_ok(save_by(*way, new, scratch_path("save.safetensors")));
    file_calls_watch(NULL);
    shard_tensors_destroy(old);
    shard_tensors_destroy(new);
}

/* ---- a disk after the power has gone ---- */

/* The moment: before event `end`. local: a sync of one rank is for the writes of all ranks; else, as on a file system of several
 * hosts, for those of this rank. */
typedef struct moment {
    int end;
    bool local;
} moment;

/* Whether the call of event i had ended when event j was entered. */
static bool ended(int i, int j)
{
    for (int next = i + 1; next <= j && next < log_of_save->count; next++)
        if (log_of_save->events[next].rank == log_of_save->events[i].rank)
            return true;
    return j >= log_of_save->count;
}

/* Whether a call of that kind that has ended before the moment makes event i last. */
static bool is_synced(int i, event_kind by, const moment *m)
{
    for (int j = i + 1; j < m->end; j++) {
        const event *sync = &log_of_save->events[j];
        if (sync->kind == by && (m->local || sync->rank == log_of_save->events[i].rank) && ended(i, j) && ended(j, m->end))
            return true;
    }
    return false;
}

/* Applies a write, or what is left of it. */
static void apply(unsigned char *file, const event *e, bool synced)
{
    for (size_t at = 0; at < e->bytes;) {
        size_t next = (e->offset + at) / SECTOR * SECTOR + SECTOR - e->offset;
        next = next < e->bytes ? next : e->bytes;
        size_t end = synced ? next : rand() % 3 == 0 ? at : rand() % 8 == 0 ? at + (size_t)rand() % (next - at) : next;
        memcpy(file + e->offset + at, log_of_save->data + e->data + at, end - at);
        at = next;
    }
}

/* Makes the new file; returns its size. */
static size_t make_image(unsigned char *file, const moment *m)
{
    size_t size = 0;
    memset(file, 0, FILE_MOST);
    for (int synced = 0; synced < 2; synced++)
        for (int i = 0; i < m->end; i++) {
            const event *e = &log_of_save->events[i];
            bool lasts = is_synced(i, SYNC, m);
            if (lasts != synced)
                continue;
            if (e->kind == SIZE)
                size = lasts || rand() % 2 ? e->bytes : (size_t)rand() % (e->bytes + 1);
            else if (e->kind == WRITE)
                apply(file, e, lasts);
        }
    return size;
}

/* Whether the new file has the checkpoint's name, of those that must have (1), cannot have (0) or may have (-1). */
static int is_renamed(const moment *m)
{
    for (int i = 0; i < m->end; i++)
        if (log_of_save->events[i].kind == RENAME)
            return is_synced(i, SYNC_DIRECTORY, m) ? 1 : -1;
    return 0;
}

/* ---- loading what is left ---- */

static void check_moment(const moment *m, const void *old, size_t old_bytes, shard_tensors *list)
{
    static unsigned char image[FILE_MOST];
    const char *path = scratch_path("crash.safetensors"), *left = scratch_path("crash.safetensors.tmp.0123456789abcdef");
    size_t bytes = make_image(image, m);
    int renamed = is_renamed(m);
    bool new = renamed == 1 || (renamed == -1 && rand() % 2);
    remove(left);
    write_file(path, new ? image : old, new ? bytes : old_bytes);
    if (!new && m->end > 0)
        write_file(left, image, bytes);
    ck_assert_msg(shard_load(list, path) == SHARD_OK, "event %d of %d, %s: %s", m->end, log_of_save->count,
                  m->local ? "a local disk" : "a file system of several hosts", shard_last_error());
    check_state(list, new ? NEW : OLD);
}

/* Every moment in turn. */
static void lose_power(shard_group *world, void *context)
{
    (void)world;
    int cases = *(int *)context;
    size_t old_bytes;
    void *old = read_file(scratch_path("old.safetensors"), &old_bytes);
    shard_tensors *list = make_small_state(NULL, 1);
    int renamed = 0;
    for (int i = 0; i < cases; i++) {
        moment m = {.end = i % (log_of_save->count + 1), .local = rand() % 2};
        check_moment(&m, old, old_bytes, list);
        renamed += is_renamed(&m) != 0;
    }
    printf("cases: %d, %d of them after the renaming\n", cases, renamed);
    ck_assert_int_ge(renamed, cases / (log_of_save->count + 1));
    /* A save that has returned lasts. */
    ck_assert_int_eq(is_renamed(&(moment){.end = log_of_save->count, .local = false}), 1);
    shard_tensors_destroy(list);
    free(old);
}

START_TEST(test_power_loss)
{
    static const int sizes[] = {1, 2, 3, 4};
    save_way way = (save_way)(_i / 4);
    int cases = getenv("SHARD_TEST_EVERY") ? 5000 : 300;
    unsigned seed = (unsigned)time(NULL);
    printf("seed: %u\n", seed);
    srand(seed);
    log_of_save = mmap(NULL, sizeof *log_of_save, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(log_of_save, MAP_FAILED);
    run_job(sizes[_i % 4], save_old_and_new, &way);
    ck_assert_int_ge(log_of_save->count, 14);
    run_job_of((ranks_run){.size = 1, .body = lose_power, .context = &cases, .deadline = 200});
    munmap(log_of_save, sizeof *log_of_save);
}
END_TEST

int main(void)
{
    scratch_open();
    Suite *suite = suite_create("checkpoint power");
    TCase *tcase = test_case(suite, "power");
    if (getenv("SHARD_TEST_EVERY"))
        tcase_set_timeout(tcase, 240);
    tcase_add_loop_test(tcase, test_power_loss, 0, 4 * SAVE_WAYS);
    int failed = test_run(suite);
    scratch_close();
    return failed;
}
