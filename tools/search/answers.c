#include "answers.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/math.h"
#include "base/memory.h"
#include "comm/straggler.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

shard_status answers_open(answers *a, const char *path, shard_dtype dtype)
{
    *a = (answers){.path = path, .new.lock = -1, .digits = dtype == SHARD_FLOAT64 ? 17 : 9};
    return path ? shard_new_file_begin(&a->new, path) : SHARD_OK;
}

shard_status answers_finish(answers *a)
{
    return a->path ? shard_new_file_finish(&a->new) : SHARD_OK;
}

void answers_close(answers *a)
{
    shard_new_file_end(&a->new);
    free(a->text);
    a->text = NULL;
}

/* The answer to one query; NULL without memory. */
static json_t *make_answer(json_t *query, const row_names *names, int64_t k, const double *score, const int64_t *row)
{
    json_t *rows = json_array(), *scores = json_array(), *called = names ? json_array() : NULL;
    bool made = rows && scores && (called || !names);
    for (int64_t i = 0; i < k && made; i++) {
        /* JSON has no infinity */
        json_t *number = isfinite(score[i]) ? json_real(score[i]) : json_null();
        made = json_array_append_new(rows, json_integer(row[i])) == 0 && json_array_append_new(scores, number) == 0 &&
               (!called || json_array_append(called, names->at[row[i]]) == 0);
    }
    json_t *answer = made ? json_pack("{s:O, s:O}", "query", query, "rows", rows) : NULL;
    if (answer && ((called && json_object_set(answer, "names", called) != 0) || json_object_set(answer, "scores", scores) != 0)) {
        json_decref(answer);
        answer = NULL;
    }
    json_decref(rows);
    json_decref(scores);
    json_decref(called);
    return answer;
}

static shard_status keep(answers *a, const char *text, int64_t bytes)
{
    SHARD_TRY(shard_grow(&a->text, &a->capacity, a->end + bytes, 1));
    memcpy(a->text + a->end, text, (size_t)bytes);
    a->end += bytes;
    return SHARD_OK;
}

static shard_status write_line(answers *a, const json_t *answer)
{
    char *text = answer ? json_dumps(answer, JSON_COMPACT | JSON_REAL_PRECISION((size_t)a->digits)) : NULL;
    if (!text)
        return shard_error(SHARD_ERROR_MEMORY, "no memory for an answer");
    int64_t bytes = (int64_t)strlen(text);
    text[bytes++] = '\n'; /* in the place of the 0 */
    shard_status status = a->path ? shard_file_write(&a->new.file, text, bytes, a->written, NULL) : keep(a, text, bytes);
    a->written += bytes;
    free(text);
    return status;
}

shard_status answers_write(answers *a, const batch *b, const row_names *names, int64_t k, const double *score, const int64_t *row)
{
    for (int64_t i = 0; i < b->count; i++) {
        bool wrong = b->row[i] == QUERY_WRONG;
        json_t *answer = wrong ? json_incref(b->query[i]) : make_answer(b->query[i], names, k, score + i * k, row + i * k);
        shard_status status = write_line(a, answer);
        json_decref(answer);
        SHARD_TRY(status);
    }
    return SHARD_OK;
}

/* The ranks that wait meanwhile do not wait for a computation. */
static bool wait_for_room(int64_t milliseconds)
{
    struct pollfd output = {.fd = STDOUT_FILENO, .events = POLLOUT};
    shard_straggler_enter();
    int ready = poll(&output, 1, (int)milliseconds);
    shard_straggler_leave();
    return ready > 0;
}

/* A pipe that has room takes PIPE_BUF bytes at once, so that a write does not wait. */
shard_status answers_flush(answers *a, int wait, bool *left)
{
    int64_t until = shard_nanoseconds() + wait * (int64_t)1000000, now;
    *left = true;
    while (a->begin < a->end && (now = shard_nanoseconds()) < until && wait_for_room((until - now) / 1000000)) {
        ssize_t done = write(STDOUT_FILENO, a->text + a->begin, (size_t)shard_min(a->end - a->begin, PIPE_BUF));
        if (done < 0 && errno != EINTR && errno != EAGAIN) /* EAGAIN: another process has taken the room */
            return shard_error(SHARD_ERROR_IO, "cannot write to standard output: %s", strerror(errno));
        a->begin += done > 0 ? done : 0;
    }
    *left = a->begin < a->end;
    if (!*left)
        a->begin = a->end = 0;
    return SHARD_OK;
}
