#include "metrics.h"

#include "tensorboard.h"

#include <shard/distributed.h>

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB 1048576.0

/* The columns of the table that is gathered from the ranks. */
typedef struct measures {
    double samples, parameters, seconds, current_mib, peak_mib, rss_mib;
} measures;
#define MEASURES ((int64_t)(sizeof(measures) / sizeof(double)))

struct metrics {
    bool wanted;
    FILE *file; /* on rank 0 */
    char *path;
    tensorboard *board; /* on rank 0 */
    metrics_model model;
};

static FILE *open_lines(const char *path, bool append)
{
    FILE *file = fopen(path, append ? "a" : "w");
    if (!file)
        shard_error(SHARD_ERROR_IO, "--metrics %s: %s", path, strerror(errno));
    return file;
}

metrics *metrics_open(metrics_options wanted, metrics_model model)
{
    metrics *made = calloc(1, sizeof *made);
    if (!made || (wanted.path && !(made->path = strdup(wanted.path)))) {
        shard_error(SHARD_ERROR_MEMORY, "no memory for the metrics");
        free(made);
        return NULL;
    }
    made->wanted = wanted.path || wanted.tensorboard;
    made->model = model;
    bool first = shard_group_rank(shard_world()) == 0;
    if ((!first || !wanted.path || (made->file = open_lines(wanted.path, wanted.append))) &&
        (!first || !wanted.tensorboard || (made->board = tensorboard_open(wanted.tensorboard, wanted.goes_on))))
        return made;
    metrics_close(made);
    return NULL;
}

void metrics_add_value(metrics_entry *entry, metrics_value value)
{
    int count = 0;
    while (count < METRICS_MOST_VALUES - 1 && entry->values[count].name)
        count++;
    entry->values[count] = value;
}

/* Resident memory of this process, all kinds. */
static double resident_mib(void)
{
    FILE *file = fopen("/proc/self/statm", "r");
    int64_t pages = 0;
    if (file && fscanf(file, "%*d %" SCNd64, &pages) != 1)
        pages = 0;
    if (file)
        fclose(file);
    return (double)pages * (double)sysconf(_SC_PAGESIZE) / MIB;
}

static measures measure(const metrics *to, const metrics_entry *entry)
{
    shard_memory_stats memory = shard_get_memory_stats(shard_device_open(NULL));
    return (measures){
        .samples = (double)entry->local_samples,
        .parameters = (double)to->model.local_parameters,
        .seconds = entry->seconds,
        .current_mib = (double)memory.current / MIB,
        .peak_mib = (double)memory.peak / MIB,
        .rss_mib = resident_mib(),
    };
}

/* JSON has neither NaN nor infinity. */
static void write_number(FILE *file, const char *name, double value)
{
    if (isfinite(value))
        fprintf(file, "\"%s\":%.17g,", name, value);
    else
        fprintf(file, "\"%s\":null,", name);
}

static void write_memory(FILE *file, const measures *of)
{
    fprintf(file, "\"parameters\":%.0f,\"step_seconds\":%.6f,\"memory_mib\":{\"current\":%.3f,\"peak\":%.3f},\"rss_mib\":%.3f", of->parameters, of->seconds,
            of->current_mib, of->peak_mib, of->rss_mib);
}

/* The maximum over the ranks on the top level, then the value of each rank. */
static void write_ranks(FILE *file, const char *samples, const measures *of, int ranks)
{
    measures most = {0};
    for (int i = 0; i < ranks; i++)
        most = (measures){
            .parameters = fmax(most.parameters, of[i].parameters),
            .seconds = fmax(most.seconds, of[i].seconds),
            .current_mib = fmax(most.current_mib, of[i].current_mib),
            .peak_mib = fmax(most.peak_mib, of[i].peak_mib),
            .rss_mib = fmax(most.rss_mib, of[i].rss_mib),
        };
    write_memory(file, &most);
    fputs(",\"ranks\":[", file);
    for (int i = 0; i < ranks; i++) {
        fprintf(file, "%s{\"rank\":%d,\"%s\":%.0f,", i ? "," : "", i, samples, of[i].samples);
        write_memory(file, &of[i]);
        fputc('}', file);
    }
    fputc(']', file);
}

static void write_value(FILE *file, const metrics_value *value)
{
    if (value->kind == METRICS_NUMBER)
        write_number(file, value->name, value->value);
    else if (value->kind == METRICS_WHOLE)
        fprintf(file, "\"%s\":%.0f,", value->name, value->value);
    else
        fprintf(file, "\"%s\":%s,", value->name, value->value != 0 ? "true" : "false");
}

static shard_status write_line(metrics *to, const metrics_entry *entry, const measures *of, int ranks)
{
    FILE *file = to->file;
    char rate[64];
    fprintf(file, "{\"step\":%" PRId64 ",\"epoch\":%" PRId64 ",\"num_classes\":%" PRId64 ",", entry->step, entry->epoch,
            to->model.num_classes);
    if (entry->validation)
        fputs("\"validation\":true,", file);
    for (int i = 0; i < METRICS_MOST_VALUES && entry->values[i].name; i++)
        write_value(file, &entry->values[i]);
    fprintf(file, "\"%s\":%" PRId64 ",", to->model.samples, entry->samples);
    snprintf(rate, sizeof rate, "%s_per_second", to->model.samples);
    write_number(file, rate, (double)entry->samples / entry->seconds);
    write_ranks(file, to->model.samples, of, ranks);
    fputs("}\n", file);
    if (fflush(file) != 0 || ferror(file))
        return shard_error(SHARD_ERROR_IO, "--metrics %s: %s", to->path, strerror(errno));
    return SHARD_OK;
}

static shard_status write_points(tensorboard *board, const metrics_model *model, const metrics_entry *entry)
{
    const char *phase = entry->validation ? "validation" : "train";
    shard_status status = SHARD_OK;
    char tag[128];
    for (int i = 0; i < METRICS_MOST_VALUES && entry->values[i].name && status == SHARD_OK; i++) {
        if (isnan(entry->values[i].value)) /* a measure that the step has not */
            continue;
        snprintf(tag, sizeof tag, "%s/%s", phase, entry->values[i].name);
        status = tensorboard_add_scalar(board, tag, entry->values[i].value, entry->step);
    }
    snprintf(tag, sizeof tag, "%s/%s_per_second", phase, model->samples);
    if (status == SHARD_OK)
        status = tensorboard_add_scalar(board, tag, (double)entry->samples / entry->seconds, entry->step);
    return status == SHARD_OK ? tensorboard_flush(board) : status;
}

shard_status metrics_write(metrics *to, const metrics_entry *entry)
{
    if (!to || !to->wanted)
        return shard_last_status();
    shard_group *world = shard_world();
    int ranks = shard_group_size(world);
    measures own = measure(to, entry), *all = calloc((size_t)ranks, sizeof *all);
    if (!all)
        return shard_error(SHARD_ERROR_MEMORY, "no memory for the metrics of %d ranks", ranks);
    shard_status status = SHARD_OK;
    SHARD_SCOPE {
        shard_tensor *row = shard_from_host(&own, SHARD_SHAPE(1, MEASURES), .dtype = SHARD_FLOAT64, .device = shard_device_open("cpu"));
        status = shard_copy_to_host(shard_gather_from_group(row, 0, world), all, (size_t)ranks * sizeof *all);
    }
    if (status == SHARD_OK && to->file)
        status = write_line(to, entry, all, ranks);
    if (status == SHARD_OK && to->board)
        status = write_points(to->board, &to->model, entry);
    free(all);
    return status;
}

shard_status metrics_print_memory(void)
{
    shard_group *world = shard_world();
    shard_device *device = shard_device_open(NULL);
    int rank = shard_group_rank(world), most = 0;
    int64_t peak = shard_get_memory_stats(device).peak;
    SHARD_SCOPE {
        shard_tensor *own = shard_from_host(&peak, SHARD_SHAPE(1), .dtype = SHARD_INT64, .device = shard_device_open("cpu"));
        shard_tensor *all = shard_gather_from_group(own, 0, world);
        for (int i = 1; i < shard_group_size(world) && all; i++)
            if (((int64_t *)shard_data(all))[i] > ((int64_t *)shard_data(all))[most])
                most = i;
    }
    if (shard_last_status() != SHARD_OK || rank != most)
        return shard_last_status();
    return shard_memory_report(device, stdout);
}

shard_status metrics_close(metrics *to)
{
    if (!to)
        return SHARD_OK;
    shard_status status = SHARD_OK;
    if (to->file && fclose(to->file) != 0)
        status = shard_error(SHARD_ERROR_IO, "--metrics %s: %s", to->path, strerror(errno));
    shard_status of_board = tensorboard_close(to->board);
    status = status == SHARD_OK ? of_board : status;
    free(to->path);
    free(to);
    return status;
}
