#include "metrics.h"

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
    double images, parameters, seconds, current_mib, peak_mib, rss_mib;
} measures;
#define MEASURES ((int64_t)(sizeof(measures) / sizeof(double)))

struct metrics {
    bool wanted;
    FILE *file; /* on rank 0 */
    char *path;
    metrics_model model;
};

metrics *metrics_open(const char *path, bool append, metrics_model model)
{
    metrics *made = calloc(1, sizeof *made);
    if (!made || (path && !(made->path = strdup(path)))) {
        shard_error(SHARD_ERROR_MEMORY, "no memory for the metrics");
        free(made);
        return NULL;
    }
    made->wanted = path != NULL;
    made->model = model;
    if (!path || shard_group_rank(shard_world()) != 0)
        return made;
    made->file = fopen(path, append ? "a" : "w");
    if (made->file)
        return made;
    shard_error(SHARD_ERROR_IO, "--metrics %s: %s", path, strerror(errno));
    metrics_close(made);
    return NULL;
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
        .images = (double)entry->local_images,
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
static void write_ranks(FILE *file, const measures *of, int ranks)
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
        fprintf(file, "%s{\"rank\":%d,\"images\":%.0f,", i ? "," : "", i, of[i].images);
        write_memory(file, &of[i]);
        fputc('}', file);
    }
    fputc(']', file);
}

static shard_status write_line(metrics *to, const metrics_entry *entry, const measures *of, int ranks)
{
    FILE *file = to->file;
    fprintf(file, "{\"step\":%" PRId64 ",\"epoch\":%" PRId64 ",\"num_classes\":%" PRId64 ",", entry->step, entry->epoch,
            to->model.num_classes);
    if (entry->validation) {
        fputs("\"validation\":true,", file);
    } else {
        write_number(file, "lr", entry->lr);
        write_number(file, "grad_scale", entry->grad_scale);
        fprintf(file, "\"left_out\":%s,", entry->skipped ? "true" : "false");
    }
    write_number(file, "loss", entry->loss);
    write_number(file, "top1", entry->top1);
    write_number(file, "top5", entry->top5);
    fprintf(file, "\"images\":%" PRId64 ",", entry->images);
    write_number(file, "images_per_second", (double)entry->images / entry->seconds);
    write_ranks(file, of, ranks);
    fputs("}\n", file);
    if (fflush(file) != 0 || ferror(file))
        return shard_error(SHARD_ERROR_IO, "--metrics %s: %s", to->path, strerror(errno));
    return SHARD_OK;
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
    free(to->path);
    free(to);
    return status;
}
