#include "answers.h"

#include "base/error.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static shard_status write_line(answers *a, const json_t *answer)
{
    char *text = answer ? json_dumps(answer, JSON_COMPACT | JSON_REAL_PRECISION((size_t)a->digits)) : NULL;
    if (!text)
        return shard_error(SHARD_ERROR_MEMORY, "no memory for an answer");
    size_t bytes = strlen(text);
    text[bytes++] = '\n'; /* in the place of the 0 */
    shard_status status = SHARD_OK;
    if (a->path)
        status = shard_file_write(&a->new.file, text, (int64_t)bytes, a->written, NULL);
    else if (fwrite(text, 1, bytes, stdout) != bytes)
        status = shard_error(SHARD_ERROR_IO, "cannot write to standard output: %s", strerror(errno));
    a->written += (int64_t)bytes;
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
    if (!a->path && fflush(stdout) != 0)
        return shard_error(SHARD_ERROR_IO, "cannot write to standard output: %s", strerror(errno));
    return SHARD_OK;
}
