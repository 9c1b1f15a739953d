/* Each call of the system that a save makes fails, in each of some ways, once and from then on, on each rank: all ranks have
 * the same error, the old file is as it was, and the job goes on. Of synchronous saves and of asynchronous ones. */
#include "support/file_calls.h"
#include "support/scratch.h"
#include "support/state.h"

#include "comm/comm.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* An interrupted call is repeated: one that is interrupted from then on goes through after so many
 * times. */
enum { INTERRUPTIONS = 20, SHORT = -1, OLD = 100, NEW = 200 };

static const int errors[] = {ENOSPC, EIO, EDQUOT, EINTR, SHORT};
enum { ERRORS = sizeof errors / sizeof *errors };
static const int sizes[] = {1, 2, 4};
enum { SIZES = sizeof sizes / sizeof *sizes };

/* What happens to the calls of this process. */
static struct {
    int at; /* the call that fails, from 1 on; 0: none */
    int error;
    bool for_good;
    int made, interrupted;
    int direct; /* the descriptor of O_DIRECT */
    bool fired;
    bool serious; /* the save cannot succeed */
    bool renamed;
} fault;

static bool is_harmless(const file_call *call)
{
    switch (call->kind) {
    case CALL_OPEN:
        return call->flags & O_DIRECT || fault.error == EINTR;
    case CALL_CLOSE:
        return call->descriptor == fault.direct || fault.renamed || fault.error == EINTR;
    case CALL_UNLINK:
    case CALL_FLOCK:
        return true;
    default: /* all others are repeated, but for rename and ftruncate, which do not wait */
        return fault.error == EINTR && call->kind != CALL_RENAME && call->kind != CALL_FTRUNCATE;
    }
}

static ssize_t shorten(const file_call *call)
{
    size_t half = call->bytes / 2, unit = call->descriptor == fault.direct ? 512 : 1;
    return call->kind == CALL_PWRITE && half >= unit ? (ssize_t)(half / unit * unit) : CALL_MAKE;
}

static ssize_t fail_call(const file_call *call)
{
    bool fails = ++fault.made == fault.at || (fault.for_good && fault.at && fault.made > fault.at);
    if (!fails || (fault.error == EINTR && fault.interrupted++ % (INTERRUPTIONS + 1) == INTERRUPTIONS))
        return call->kind == CALL_FSYNC ? CALL_LEAVE : CALL_MAKE;
    fault.fired = true;
    if (fault.error == SHORT)
        return shorten(call);
    fault.serious |= !is_harmless(call);
    errno = fault.error;
    return CALL_FAIL;
}

static ssize_t watch_call(const file_call *call)
{
    ssize_t answer = fail_call(call);
    fault.renamed |= call->kind == CALL_RENAME && answer == CALL_MAKE;
    if (call->kind == CALL_CLOSE && call->descriptor == fault.direct)
        fault.direct = -1;
    return answer;
}

/* The descriptor is known when it is used first: the one with the flag. */
static ssize_t note_direct(const file_call *call)
{
    if (call->descriptor >= 0 && fcntl(call->descriptor, F_GETFL) & O_DIRECT)
        fault.direct = call->descriptor;
    return watch_call(call);
}

static void start(int error, bool for_good, int at)
{
    memset(&fault, 0, sizeof fault);
    fault.direct = -1;
    fault.error = error;
    fault.for_good = for_good;
    fault.at = at;
    file_calls_watch(note_direct);
}

/* Whether it is so on any rank. */
static bool any(shard_group *world, bool here)
{
    int32_t all = here;
    check_ok(shard_group_all_reduce(world, NULL, &all, 1, SHARD_INT32, SHARD_MAX));
    return all;
}

static void check_small(shard_group *world, const char *path, uint64_t seed)
{
    shard_tensors *list = make_small_state(world, 1);
    check_ok(shard_load(list, path));
    check_state(list, seed);
    shard_tensors_destroy(list);
}

typedef struct error_case {
    int ranks, error;
    save_way way;
} error_case;

/* One save fails at that call of that rank. Returns whether there was such a call. */
static bool save_once(shard_group *world, const error_case *c, shard_tensors *list, int rank, bool for_good, int at)
{
    const char *path = scratch_path("errors.safetensors");
    int error = c->error;
    start(error, for_good, shard_group_rank(world) == rank ? at : 0);
    shard_status status = save_by(c->way, list, path);
    bool serious = fault.serious, fired = fault.fired, renamed = fault.renamed;
    file_calls_watch(NULL);
    char text[200];
    snprintf(text, sizeof text, "*: %s*", error == SHORT ? "no error" : strerror(error));
    if (status != SHARD_OK)
        check_error(status, text);
    serious = any(world, serious);
    renamed = any(world, renamed);
    ck_assert_msg((status != SHARD_OK) == serious, "rank %d, call %d, %s%s: status %d", rank, at, text,
                  for_good ? ", for good" : "", (int)status);
    ck_assert(renamed || status != SHARD_OK);
    /* Only a directory that cannot be synced leaves the new file and an error. */
    check_small(world, path, renamed ? NEW : OLD);
    return any(world, fired);
}

static void save_fails(shard_group *world, void *context)
{
    const error_case *c = context;
    const char *path = scratch_path("errors.safetensors");
    shard_tensors *old = make_small_state(world, OLD), *new = make_small_state(world, NEW);
    int cases = 0;
    for (int i = 0; i < 2 * c->ranks; i++) {
        bool fired = true;
        for (int at = 1; fired; at++) {
            start(0, false, 0);
            check_ok(shard_save(old, path, NULL)); /* the job goes on, and removes what an unlink that failed has left */
            ck_assert_int_eq(scratch_count(".tmp"), 0);
            check_ok(shard_barrier(world));
            fired = save_once(world, c, new, i / 2, i % 2, at);
            cases += fired;
        }
    }
    if (shard_group_rank(world) == 0)
        printf("cases: %d\n", cases);
    ck_assert_int_ge(cases, 12 * c->ranks);
    shard_tensors_destroy(old);
    shard_tensors_destroy(new);
}

START_TEST(test_save_fails)
{
    error_case c = {sizes[_i / ERRORS % SIZES], errors[_i % ERRORS], (save_way)(_i / ERRORS / SIZES)};
    run_job_of((ranks_run){.size = c.ranks, .body = save_fails, .context = &c, .deadline = 55});
}
END_TEST

int main(void)
{
    scratch_open();
    Suite *suite = suite_create("checkpoint errors");
    TCase *tcase = test_case(suite, "errors");
    tcase_add_loop_test(tcase, test_save_fails, 0, SAVE_WAYS * SIZES * ERRORS);
    int failed = test_run(suite);
    scratch_close();
    return failed;
}
