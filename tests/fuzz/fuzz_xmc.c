/* Any bytes as a data set of projects/debs: refused with an error of one line, or numbers in their ranges and orders, which
 * written as text are read as the same. */
#include "xmc.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds)
{
    if (!holds)
        abort();
}

static char path[64] = "/dev/shm/shard-fuzz-XXXXXX";

static void remove_file(void)
{
    unlink(path);
}

static void start(void)
{
    static bool started;
    if (started)
        return;
    int descriptor = mkstemp(path);
    must(descriptor >= 0 && close(descriptor) == 0 && atexit(remove_file) == 0);
    started = true;
}

static xmc_data *read_bytes(const void *bytes, size_t size)
{
    FILE *file = fopen(path, "wb");
    must(file && fwrite(bytes, 1, size, file) == size && fclose(file) == 0);
    return xmc_open(path);
}

static void check_point(const xmc_data *read, int64_t point)
{
    int64_t first = read->label_begin[point], end = read->label_begin[point + 1];
    must(first <= end);
    for (int64_t i = first; i < end; i++)
        must(read->label[i] >= 0 && read->label[i] < read->labels && (i == first || read->label[i - 1] < read->label[i]));
    first = read->feature_begin[point];
    end = read->feature_begin[point + 1];
    must(first <= end);
    for (int64_t i = first; i < end; i++) {
        const xmc_feature *feature = &read->feature[i];
        must(feature->number >= 0 && feature->number < read->features && isfinite(feature->value));
        must(i == first || feature[-1].number < feature->number);
    }
}

static void write_point(const xmc_data *read, int64_t point, FILE *to)
{
    for (int64_t i = read->label_begin[point]; i < read->label_begin[point + 1]; i++)
        fprintf(to, "%s%d", i > read->label_begin[point] ? "," : "", (int)read->label[i]);
    for (int64_t i = read->feature_begin[point]; i < read->feature_begin[point + 1]; i++)
        fprintf(to, " %d:%.9g", (int)read->feature[i].number, (double)read->feature[i].value);
    fputc('\n', to);
}

static void must_equal(const void *a, const void *b, int64_t count, size_t bytes)
{
    must(count == 0 || memcmp(a, b, (size_t)count * bytes) == 0);
}

/* Writes the data as text and reads it again. */
static void check_again(const xmc_data *read)
{
    char *text = NULL;
    size_t size = 0;
    FILE *to = open_memstream(&text, &size);
    must(to != NULL);
    fprintf(to, "%" PRId64 " %" PRId64 " %" PRId64 "\n", read->points, read->features, read->labels);
    for (int64_t i = 0; i < read->points; i++)
        write_point(read, i, to);
    must(fclose(to) == 0);
    xmc_data *again = read_bytes(text, size);
    must(again && again->points == read->points && again->features == read->features && again->labels == read->labels);
    must_equal(again->label_begin, read->label_begin, read->points + 1, sizeof *read->label_begin);
    must_equal(again->feature_begin, read->feature_begin, read->points + 1, sizeof *read->feature_begin);
    must_equal(again->label, read->label, read->label_begin[read->points], sizeof *read->label);
    must_equal(again->feature, read->feature, read->feature_begin[read->points], sizeof *read->feature);
    xmc_close(again);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    start();
    xmc_data *read = read_bytes(data, size);
    must((read != NULL) == (shard_last_status() == SHARD_OK) && !strpbrk(shard_last_error(), "\n\033"));
    for (int64_t i = 0; read && i < read->points; i++)
        check_point(read, i);
    if (read)
        check_again(read);
    xmc_close(read);
    shard_clear_error();
    return 0;
}
