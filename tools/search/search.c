/* Rank 0 reads queries and writes answers; all ranks search their rows. */
#include "search.h"

#include "answers.h"
#include "queries.h"
#include "rows.h"
#include "table.h"

#include "../checkpoint/source.h"

#include "base/error.h"
#include "base/memory.h"

#include <shard/shard.h>

#include <stdlib.h>
#include <string.h>

/* Milliseconds that rank 0 waits for input, or for a reader of its output, before it lets the other ranks know that it is there:
 * they would take it for lost after SHARD_TIMEOUT seconds. */
enum { WAIT = 500 };

typedef struct search {
    const settings *options;
    table table;
    batch batch;
    double *score;  /* [batch, k] */
    int64_t *found; /* [batch, k] */
    /* of rank 0 */
    bool reads;
    row_names names;
    queries queries;
    answers answers;
} search;

/* ---- the ranks' exchange ---- */

/* Rank 0's numbers, on all ranks. */
static shard_status broadcast(int64_t *numbers, int64_t count)
{
    shard_status status = SHARD_OK;
    SHARD_SCOPE
    {
        shard_tensor *x = shard_from_host(numbers, SHARD_SHAPE(count), .dtype = SHARD_INT64, .device = shard_device_open("cpu"));
        status = shard_broadcast(x, 0, shard_world());
        if (status == SHARD_OK)
            status = shard_copy_to_host(x, numbers, (size_t)count * sizeof *numbers);
    }
    return status;
}

/* Adds up the ranks' vectors: each query's is that of one rank, the owner of its row or rank 0. */
static shard_status gather_vectors(search *s)
{
    batch *b = &s->batch;
    int64_t width = s->table.width;
    shard_status status = SHARD_OK;
    for (int64_t i = 0; i < b->count && status == SHARD_OK; i++)
        if (b->row[i] >= 0)
            status = table_read_row(&s->table, b->row[i], b->vector + i * width);
    if (shard_group_size(shard_world()) == 1 || width == 0)
        return status;
    SHARD_SCOPE
    {
        shard_tensor *x =
            shard_from_host(b->vector, SHARD_SHAPE(b->count, width), .dtype = SHARD_FLOAT64, .device = shard_device_open("cpu"));
        status = shard_all_reduce(x, SHARD_SUM, shard_world());
        if (status == SHARD_OK)
            status = shard_copy_to_host(x, b->vector, (size_t)(b->count * width) * sizeof *b->vector);
    }
    return status;
}

/* ---- searching ---- */

/* Rows of no numbers have the score 0, and a small file can claim any number of them: the first ones are the nearest. */
static shard_status find_first(search *s)
{
    int64_t k = s->table.k;
    for (int64_t i = 0; i < s->batch.count * k; i++) {
        s->score[i] = 0;
        s->found[i] = i % k;
    }
    return SHARD_OK;
}

static shard_status find(search *s)
{
    const batch *b = &s->batch;
    int64_t k = s->table.k, numbers = b->count * s->table.width;
    shard_status status = SHARD_OK;
    for (int64_t i = 0; i < b->count && s->table.cosine; i++)
        row_normalize(b->vector + i * s->table.width, s->table.width);
    SHARD_NO_GRAD
    SHARD_SCOPE
    {
        shard_tensor *rows = NULL, *x = shard_empty(SHARD_SHAPE(b->count, s->table.width), .dtype = SHARD_FLOAT64);
        shard_copy_from_host(x, b->vector, (size_t)numbers * sizeof *b->vector);
        shard_tensor *scores = shard_linear_top_k(shard_cast(x, s->table.dtype), s->table.split, NULL, k, &rows);
        status = shard_copy_to_host(shard_cast(scores, SHARD_FLOAT64), s->score, (size_t)(b->count * k) * sizeof *s->score);
        if (status == SHARD_OK)
            status = shard_copy_to_host(rows, s->found, (size_t)(b->count * k) * sizeof *s->found);
    }
    return status;
}

/* Reads the next queries when the answers to those before are written. */
static shard_status read_batch(search *s)
{
    bool left;
    SHARD_TRY(answers_flush(&s->answers, WAIT, &left));
    return left ? SHARD_OK : queries_read(&s->queries, &s->batch, WAIT);
}

/* One batch, which may be empty; *last: there are no more, and all answers are written. An error of one rank is that of all in
 * the first collective that follows. */
static shard_status run_batch(search *s, bool *last)
{
    batch *b = &s->batch;
    batch_clear(b, s->table.width);
    if (signal_taken())
        shard_error(SHARD_ERROR_IO, "interrupted by signal %d", signal_taken());
    else if (s->reads)
        read_batch(s);
    int64_t state[2] = {b->count, b->last};
    SHARD_TRY(broadcast(state, 2));
    b->count = state[0];
    *last = state[1] != 0 && b->count == 0;
    if (b->count == 0)
        return SHARD_OK;
    SHARD_TRY(broadcast(b->row, b->count));
    SHARD_TRY(gather_vectors(s));
    SHARD_TRY(s->table.width > 0 ? find(s) : find_first(s));
    if (s->reads)
        answers_write(&s->answers, b, s->names.at ? &s->names : NULL, s->table.k, s->score, s->found);
    return SHARD_OK;
}

/* ---- the run ---- */

static shard_status allocate(search *s)
{
    int64_t numbers;
    if (!shard_multiply(s->options->batch, s->table.k, &numbers))
        return shard_error(SHARD_ERROR_MEMORY, "--batch-size times -k overflows");
    s->score = shard_calloc((size_t)numbers, sizeof *s->score);
    s->found = shard_calloc((size_t)numbers, sizeof *s->found);
    return s->score && s->found ? batch_open(&s->batch, s->options->batch, s->table.width) : shard_last_status();
}

static shard_status check_output(const settings *o)
{
    const char *const read[] = {o->checkpoint, o->names, o->queries};
    for (size_t i = 0; i < sizeof read / sizeof *read && o->output; i++)
        if (read[i])
            SHARD_TRY(source_check_output(o->output, read[i]));
    return SHARD_OK;
}

/* Opens the files that rank 0 reads. */
static shard_status open_files(search *s)
{
    const settings *o = s->options;
    SHARD_TRY(check_output(o));
    if (o->names)
        SHARD_TRY(names_read(&s->names, o->names, s->table.rows));
    s->queries = (queries){.names = o->names ? &s->names : NULL,
                           .rows = s->table.rows,
                           .width = s->table.width,
                           .most = s->table.most,
                           .from.descriptor = -1};
    return queries_open(&s->queries, o->queries);
}

/* The signals come first, or one could leave the temporary file of --output. */
static shard_status open_output(search *s)
{
    if (s->options->output)
        signals_take();
    if (s->reads)
        answers_open(&s->answers, s->options->output, s->table.dtype);
    return shard_agree(shard_world());
}

static shard_status run(search *s)
{
    bool last = false;
    SHARD_TRY(table_open(&s->table, s->options));
    if (allocate(s) == SHARD_OK && s->reads)
        open_files(s);
    SHARD_TRY(shard_agree(shard_world()));
    SHARD_TRY(open_output(s));
    while (!last)
        SHARD_TRY(run_batch(s, &last));
    return s->reads && shard_last_status() == SHARD_OK ? answers_finish(&s->answers) : shard_last_status();
}

shard_status command_search(const settings *o)
{
    shard_device *device = o->device ? shard_device_open(o->device) : NULL;
    shard_set_default_device(device);
    SHARD_TRY(shard_agree(shard_world()));
    search s = {
        .options = o, .reads = shard_group_rank(shard_world()) == 0, .queries.from.descriptor = -1, .answers.new.lock = -1};
    shard_status status = run(&s);
    answers_close(&s.answers);
    queries_close(&s.queries);
    names_free(&s.names);
    batch_close(&s.batch);
    free(s.score);
    free(s.found);
    table_close(&s.table);
    return status;
}
