/*
 * One rank makes another collective call than the others, skips one or leaves: for every public function that is collective
 * (support/collective_calls.h), every way to differ and every rank. All ranks fail in time with one text, which names the
 * function and the rank, and work on when they have cleared the error; after a rank has left, they fail in the same way again.
 *
 * The usual check has each rank of three as the odd one of each way to differ, one rank of two in turn, and leaving of some
 * functions. SHARD_TEST_EVERY=1: all cases, of four ranks too.
 */
#include "support/collective_calls.h"
#include "support/file_calls.h"
#include "support/scratch.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST = 4 };

/* Of all ranks of the test. */
static struct {
    _Atomic int come, round, failures, cases;
    int status[MOST];
    char text[MOST][1024];
} * shared;

/* All ranks of the test are here; without the library, which they test. */
static void meet(int ranks)
{
    int round = atomic_load(&shared->round);
    if (atomic_fetch_add(&shared->come, 1) + 1 == ranks) {
        atomic_store(&shared->come, 0);
        atomic_store(&shared->round, round + 1);
    }
    for (int spins = 0; atomic_load(&shared->round) == round; spins++)
        spins < 100 ? sched_yield() : usleep(100);
}

typedef struct plan {
    int ranks;
    bool every;
    int index; /* of CALL_LEFT: the function */
    int odd;
} plan;

static void report(const collective_call *call, const call_case *c, const char *wrong, int rank)
{
    fprintf(stderr, "%s, %s, rank %d of %d: %s: \"%s\" (%s)\n", call->name, call_kind_name(c->kind), c->odd,
            shard_group_size(c->world), wrong, shared->text[rank], shard_status_name((shard_status)shared->status[rank]));
    shared->failures++;
}

/* The function that errors name. */
static const char *reported(const collective_call *call)
{
    return call->reported ? call->reported : call->name;
}

/* The ranks that the text names one at a time, as bits: of "the bits on rank 0 are not those on ranks 1 and 2" the first. */
static unsigned named_alone(const char *text)
{
    unsigned alone = 0;
    while ((text = strstr(text, "rank"))) {
        text += text[4] == 's' ? 5 : 4;
        int first, used = 0, length = 0;
        if (sscanf(text, " %d%n", &first, &used) != 1)
            continue;
        text += used;
        for (int more; sscanf(text, ", %d%n", &more, &used) == 1 || sscanf(text, " and %d%n", &more, &used) == 1; text += used)
            length++;
        alone |= length == 0 && first >= 0 && first < MOST ? 1u << first : 0;
    }
    return alone;
}

/* "rank 1: ...": the rank whose error it is; -1: the text names none. *rest is what follows. */
static int reporting_rank(const char *text, const char **rest)
{
    int rank = -1, used = 0;
    if (sscanf(text, "rank %d: %n", &rank, &used) != 1 || used == 0)
        rank = -1;
    *rest = text + (rank < 0 ? 0 : used);
    return rank;
}

/* The ranks of those from `first` on that have an error of their own, as bits; the others received it. */
static unsigned failed_ranks(const call_case *c, int first)
{
    unsigned failed = 0;
    for (int rank = first; rank < shard_group_size(c->world); rank++)
        if ((c->kind != CALL_LEFT || rank != c->odd) && shared->status[rank] != SHARD_ERROR_PEER)
            failed |= 1u << rank;
    return failed;
}

/* Whether the text singles the odd rank out, of all but two ranks:
 * - "rank 1 calls A while ranks 0 and 2 call B": it comes first, alone on its side;
 * - "rank 1 has left": the others have no error of their own;
 * - "rank 1: cannot open A", "rank 1: here it is A, on ranks 0 and 2 B": only that rank has an error of its own;
 * - "rank 0: rank 1 has A, ranks 0 and 2 B": an error of all, in which no other rank is named alone.
 * Of two ranks none is odd, and both may be named. */
static bool names_rank(const call_case *c, const char *text, int first)
{
    int size = shard_group_size(c->world), odd = c->odd;
    char calls[24], left[24];
    const char *rest;
    unsigned failed = failed_ranks(c, first), one = 1u << odd;
    snprintf(calls, sizeof calls, "rank %d calls ", odd);
    snprintf(left, sizeof left, "rank %d has left", odd);
    if (strstr(text, " while "))
        return size == 2 ? strstr(text, calls) != NULL : strncmp(text, calls, strlen(calls)) == 0;
    int reports = reporting_rank(text, &rest);
    if (c->kind == CALL_LEFT)
        return failed == 0 && (reports == odd || strncmp(text, left, strlen(left)) == 0);
    if (size == 2)
        return named_alone(text) & one;
    return failed == one ? reports == odd : failed == (1u << size) - 1 && named_alone(rest) == one;
}

/* Of "rank 1 calls A while ranks 0 and 2 call B": whether the others' side names the function, which they called. */
static bool others_call(const char *text, int rank, const char *function)
{
    char calls[24];
    snprintf(calls, sizeof calls, "rank %d calls ", rank);
    const char *then = strstr(text, " while "), *named = strstr(text, function), *odd = strstr(text, calls);
    if (!then || !odd)
        return true;
    return odd < then ? strstr(then, function) != NULL : named && named < then;
}

/* The errors of the ranks, by the first of those that are left. */
static void judge(const collective_call *call, const call_case *c)
{
    int size = shard_group_size(c->world), first = c->kind == CALL_LEFT && c->odd == 0;
    bool same = true;
    for (int rank = first; rank < size; rank++) {
        if (c->kind == CALL_LEFT && rank == c->odd)
            continue;
        if (shared->status[rank] == SHARD_OK)
            report(call, c, "there is no error", rank);
        else if (shared->status[rank] == SHARD_ERROR_TIMEOUT || shared->status[rank] == SHARD_ERROR_INTERNAL)
            report(call, c, "the status", rank);
        same = same && strcmp(shared->text[rank], shared->text[first]) == 0;
    }
    for (int rank = first; rank < size && !same; rank++)
        report(call, c, "texts differ", rank);
    bool names_file = call->file && c->kind <= CALL_SETTING && strstr(shared->text[first], call->file);
    /* A rank that leaves its save tells that, and the others wait in the save. */
    bool names_leaving = c->kind == CALL_LEFT && strstr(shared->text[first], "shard_finalize: the save of ");
    if (!names_file && !names_leaving && !strstr(shared->text[first], reported(call)))
        report(call, c, "the function is not named", first);
    if (!names_rank(c, shared->text[first], first))
        report(call, c, "the rank is not singled out", first);
    if (!names_file && !others_call(shared->text[first], c->odd, reported(call)))
        report(call, c, "the message of the others' call names the rank", first);
}

/* After its failure. */
static void check_usable(const collective_call *call, const call_case *c)
{
    int size = shard_group_size(c->world), rank = shard_group_rank(c->world);
    SHARD_SCOPE
    {
        shard_tensor *x = shard_full(SHARD_SHAPE(100), (double)rank);
        if (shard_all_reduce(x, SHARD_SUM, c->world) != SHARD_OK ||
            shard_item(shard_max_dim(x, 0, false, NULL)) != size * (size - 1) / 2.0) {
            snprintf(shared->text[rank], sizeof shared->text[rank], "%s", shard_last_error());
            shared->status[rank] = (int)shard_last_status();
            report(call, c, "the world does not work on", rank);
            _exit(1);
        }
    }
}

static void keep_error(const call_case *c)
{
    int rank = shard_group_rank(c->world);
    shared->status[rank] = (int)shard_last_status();
    snprintf(shared->text[rank], sizeof shared->text[rank], "%s", shard_last_error());
}

static void run_case(const collective_call *call, call_case *c)
{
    int size = shard_group_size(c->world), rank = shard_group_rank(c->world);
    SHARD_SCOPE
    call->call(c);
    keep_error(c);
    meet(size);
    if (rank == 0) {
        shared->cases++;
        judge(call, c);
    }
    shard_clear_error();
    meet(size);
    check_usable(call, c);
}

static bool is_error(const collective_call *call, call_kind kind)
{
    return kind > CALL_SETTING || call->kinds >> kind & 1;
}

/* ---- ranks that stay ---- */

static void differ(shard_group *world, void *context)
{
    const plan *p = context;
    char folder[400];
    snprintf(folder, sizeof folder, "%s", scratch_path("files"));
    for (int i = 0, number = 0; i < collective_call_count; i++)
        for (call_kind kind = CALL_SHAPE; kind < CALL_LEFT; kind++)
            for (int odd = 0; odd < p->ranks; odd++) {
                const collective_call *call = &collective_calls[i];
                call_case c = {.world = world, .kind = kind, .odd = odd, .folder = folder};
                if (*reported(call) && is_error(call, kind) && (p->every || p->ranks == 3 || odd == (number + i) % p->ranks))
                    run_case(call, &c);
                number += odd == p->ranks - 1;
            }
}

/* The same calls on all ranks: else the other cases show nothing. */
static void agree(shard_group *world, void *context)
{
    (void)context;
    char folder[400];
    snprintf(folder, sizeof folder, "%s", scratch_path("files"));
    for (int i = 0; i < collective_call_count; i++) {
        call_case c = {.world = world, .kind = CALL_IDENTICAL, .folder = folder};
        SHARD_SCOPE
        collective_calls[i].call(&c);
        ck_assert_msg(shard_last_status() == SHARD_OK, "%s: %s", collective_calls[i].name, shard_last_error());
    }
}

/* ---- a rank that leaves ---- */

static void leave(void)
{
    shard_finalize();
    _exit(0);
}

static void one_leaves(shard_group *world, void *context)
{
    const plan *p = context;
    const collective_call *call = &collective_calls[p->index];
    call_case c = {.world = world, .kind = CALL_LEFT, .odd = p->odd, .folder = scratch_path("files"), .leave = leave};
    int rank = shard_group_rank(world);
    SHARD_SCOPE
    call->call(&c);
    keep_error(&c);
    meet(p->ranks - 1);
    if (rank == (p->odd == 0)) {
        shared->cases++;
        judge(call, &c);
    }
    shard_clear_error();
    const char *was = shard_barrier(world) == SHARD_ERROR_PEER ? strstr(shard_last_error(), "; it was: ") : NULL;
    if (!was || strcmp(was + strlen("; it was: "), shared->text[rank]) != 0) {
        keep_error(&c);
        report(call, &c, "no second time", rank);
    }
    _exit(0);
}

static void run_all(void)
{
    bool every = getenv("SHARD_TEST_EVERY") != NULL;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert(shared != MAP_FAILED);
    ck_assert_int_eq(mkdir(scratch_path("files"), 0700), 0);
    plan p = {.ranks = 0, .every = every};
    for (p.ranks = 2; p.ranks <= (every ? MOST : 3); p.ranks++) {
        run_job_of((ranks_run){.size = p.ranks, .body = agree});
        run_job_of((ranks_run){.size = p.ranks, .body = differ, .context = &p});
        for (p.index = 0; p.index < collective_call_count; p.index++)
            for (p.odd = 0; p.odd < p.ranks; p.odd++)
                if (*reported(&collective_calls[p.index]) && (every || p.index % (4 * (p.ranks - 1)) == 2 * p.odd))
                    run_job_of((ranks_run){.size = p.ranks, .body = one_leaves, .context = &p});
    }
}

START_TEST(test_calls)
{
    run_all();
    printf("cases: %d\n", shared->cases);
    fflush(stdout);
    ck_assert_msg(shared->failures == 0, "%d of %d cases, see above", shared->failures, shared->cases);
    ck_assert_int_gt(shared->cases, 100);
}
END_TEST

int main(void)
{
    scratch_open();
    file_calls_watch(file_calls_without_sync);
    Suite *suite = suite_create("mismatch");
    TCase *tcase = test_case(suite, "mismatch");
    if (getenv("SHARD_TEST_EVERY"))
        tcase_set_timeout(tcase, 600);
    tcase_add_test(tcase, test_calls);
    int failed = test_run(suite);
    scratch_close();
    return failed;
}
