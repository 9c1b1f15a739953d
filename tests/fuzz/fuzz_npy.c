/* Any bytes as the queries of shard-search, a .npy file or lines of JSON: the same queries whether they come at once or in parts,
 * each a row that is there or a vector of finite numbers; and in the end an error of one line or none. */
#include "../../tools/search/queries.h"
#include "base/error.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* PART: bytes that come at once, fewer than a pipe takes. */
enum { ROWS = 5, WIDTH = 3, BATCH = 4, PART = 37 };

static void must(bool holds)
{
    if (!holds)
        abort();
}

static char path[64] = "/dev/shm/shard-fuzz-XXXXXX";
static row_names names;

static void write_whole(int descriptor, const void *bytes, size_t size)
{
    must(size == 0 || write(descriptor, bytes, size) == (ssize_t)size);
}

static void finish(void)
{
    names_free(&names);
    unlink(path);
}

static void start(void)
{
    static const char text[] = "cat\nlynx\ndog\ntwice\ntwice\n";
    if (names.count)
        return;
    int descriptor = mkstemp(path);
    must(descriptor >= 0 && atexit(finish) == 0);
    write_whole(descriptor, text, sizeof text - 1);
    must(close(descriptor) == 0 && names_read(&names, path, ROWS) == SHARD_OK);
}

/* The queries of a run and how it ended. */
typedef struct outcome {
    int64_t count;
    uint64_t hash; /* FNV-1a */
    char error[1024];
} outcome;

static void add(outcome *to, const void *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        to->hash = (to->hash ^ ((const unsigned char *)data)[i]) * 0x100000001b3u;
}

static void add_batch(outcome *to, const batch *b, bool answers)
{
    must(b->count >= 0 && b->count <= b->most);
    for (int64_t i = 0; i < b->count; i++) {
        const double *vector = b->vector + i * WIDTH;
        must(b->row[i] == QUERY_VECTOR || (b->row[i] == QUERY_WRONG && answers) || (b->row[i] >= 0 && b->row[i] < ROWS));
        for (int j = 0; j < WIDTH; j++)
            must(b->row[i] == QUERY_VECTOR ? fabs(vector[j]) <= FLT_MAX : vector[j] == 0);
        add(to, &b->row[i], sizeof b->row[i]);
        add(to, vector, WIDTH * sizeof *vector);
        char *query = json_dumps(b->query[i], JSON_COMPACT | JSON_ENCODE_ANY);
        must(query != NULL);
        add(to, query, strlen(query));
        free(query);
        to->count++;
    }
}

/* Reads what has come; false: the run has ended. */
static bool read_on(queries *q, batch *b, outcome *to)
{
    bool more = true;
    for (int64_t count = 1; more && count > 0;) {
        batch_clear(b, WIDTH);
        shard_status status = queries_read(q, b, 0);
        must(status == shard_last_status());
        add_batch(to, b, q->answers);
        more = status == SHARD_OK && !b->last;
        count = b->count;
    }
    return more;
}

/* part: bytes that come at once; 0: a file, which is there as a whole. */
static outcome run(const uint8_t *data, size_t size, size_t part, bool answers)
{
    outcome to = {.hash = 0xcbf29ce484222325u};
    queries q = {.names = &names, .rows = ROWS, .width = WIDTH, .most = FLT_MAX};
    batch b;
    int ends[2] = {-1, -1};
    must(batch_open(&b, BATCH, WIDTH) == SHARD_OK && queries_open(&q, path) == SHARD_OK);
    if (part > 0) {
        must(pipe(ends) == 0 && close(q.from.descriptor) == 0);
        q.from.descriptor = ends[0];
    }
    q.answers = answers;
    bool more = true;
    for (size_t at = 0; part > 0 && more && at < size; at += part) {
        write_whole(ends[1], data + at, size - at < part ? size - at : part);
        more = read_on(&q, &b, &to);
    }
    if (part > 0)
        must(close(ends[1]) == 0);
    must(!more || !read_on(&q, &b, &to)); /* it never waits at the end of its input */
    must(strlen(shard_last_error()) < sizeof to.error && !strpbrk(shard_last_error(), "\n\033"));
    strcpy(to.error, shard_last_error());
    shard_clear_error();
    batch_close(&b);
    queries_close(&q);
    return to;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    start();
    FILE *file = fopen(path, "wb");
    must(file && fwrite(data, 1, size, file) == size && fclose(file) == 0);
    for (int answers = 0; answers < 2; answers++) {
        outcome whole = run(data, size, 0, answers), parts = run(data, size, PART, answers);
        must(whole.count == parts.count && whole.hash == parts.hash && strcmp(whole.error, parts.error) == 0);
    }
    return 0;
}
