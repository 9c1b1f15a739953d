#include "data.h"

#include "files.h"
#include "identical.h"
#include "random.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define PREFETCH 2 /* batches that are loaded ahead */

/* ---- the training set ---- */

static shard_status open_training_set(data *of, const options *wanted)
{
    char path[PATH_MAX];
    if (record_set_exists(wanted->directory)) {
        of->records = record_set_open(wanted->directory);
        of->images = of->records ? record_set_images(of->records) : 0;
        of->identities = of->records ? record_set_identities(of->records) : 0;
    } else if (files_join(path, "DIR", wanted->directory, "train") == SHARD_OK) {
        of->folder = image_folder_open(path, NULL);
        of->images = of->folder ? image_folder_images(of->folder) : 0;
        of->identities = of->folder ? image_folder_classes(of->folder) : 0;
    }
    return shard_last_status();
}

/* Without crops: the largest square in the middle, whose edges --shift moves. */
static shard_status open_loader(data *of, const options *wanted)
{
    of->train = loader_open(&(loader_options){
        .device = shard_device_open(NULL),
        .source = of->records ? record_set_source(of->records) : image_source_of_folder(of->folder),
        .batch = wanted->training.batch,
        .seed = (uint64_t)wanted->training.seed,
        .training = true,
        .augment = {.crop_scale = 1, .shift = wanted->shift, .square = true, .flip = !wanted->no_flip},
        .image_size = wanted->image_size,
        .rank = shard_group_rank(shard_world()),
        .ranks = shard_group_size(shard_world()),
        .workers = (int)wanted->workers,
        .prefetch = PREFETCH,
        .skip_bad = wanted->skip_bad_images,
    });
    return of->train ? SHARD_OK : shard_last_status();
}

/* ---- the other sets ---- */

static shard_status add_pairs(data *of, const options *wanted, const char *name, size_t length)
{
    char path[PATH_MAX], file[sizeof of->sets[0].name + sizeof ".bin"];
    validation_set *set = &of->sets[of->count];
    if (of->count == DATA_MOST_SETS || length == 0 || length >= sizeof set->name)
        return shard_error(SHARD_ERROR_ARGUMENT, "--val-targets: at most %d names of 1 to %zu bytes, with commas between them",
                           DATA_MOST_SETS - 1, sizeof set->name - 1);
    snprintf(set->name, sizeof set->name, "%.*s", (int)length, name);
    snprintf(file, sizeof file, "%s.bin", set->name);
    if (files_join(path, "DIR", wanted->directory, file) == SHARD_OK && (set->pairs = pair_set_open(path)))
        of->count++;
    return shard_last_status();
}

/* A pair of one identity, and one of two. A class of a folder has at least one image. */
static shard_status check_identities(const image_folder *folder, const char *path)
{
    int64_t identities = image_folder_classes(folder), images = image_folder_images(folder);
    if (identities >= 2 && images > identities)
        return SHARD_OK;
    return shard_error(SHARD_ERROR_FORMAT,
                       "%s: %" PRId64 " images of %" PRId64
                       " identities; verification needs two identities, and two images of one of them",
                       path, images, identities);
}

static shard_status open_validation_sets(data *of, const options *wanted)
{
    char path[PATH_MAX];
    if (files_join(path, "DIR", wanted->directory, "val") != SHARD_OK)
        return shard_last_status();
    if (access(path, F_OK) == 0) {
        snprintf(of->sets[0].name, sizeof of->sets[0].name, "val");
        if (!(of->sets[0].folder = image_folder_open(path, NULL)))
            return shard_last_status();
        of->count = 1;
        if (check_identities(of->sets[0].folder, path) != SHARD_OK)
            return shard_last_status();
    }
    shard_status status = SHARD_OK;
    for (const char *next = wanted->val_targets; next && status == SHARD_OK;) {
        size_t length = strcspn(next, ",");
        status = add_pairs(of, wanted, next, length);
        next = next[length] ? next + length + 1 : NULL;
    }
    return status;
}

image_source validation_set_images(const validation_set *set)
{
    return set->folder ? image_source_of_folder(set->folder) : pair_set_source(set->pairs);
}

/* ---- over the ranks ---- */

static uint64_t hash_text(uint64_t hash, const char *text)
{
    for (; *text; text++)
        hash = random_mix(hash ^ (uint8_t)*text);
    return random_mix(hash + RANDOM_STEP);
}

static uint64_t hash_classes(const image_folder *folder)
{
    uint64_t hash = 0;
    for (int64_t i = 0; i < image_folder_classes(folder); i++)
        hash = hash_text(hash, image_folder_class_name(folder, i));
    return hash;
}

static uint64_t hash_folder(const image_folder *folder)
{
    uint64_t hash = hash_classes(folder);
    for (int64_t i = 0; i < image_folder_images(folder); i++)
        hash = random_hash(hash_text(hash, image_folder_name(folder, i)), (uint64_t)image_folder_label(folder, i), 0);
    return hash;
}

static uint64_t hash_records(const record_set *records)
{
    uint64_t hash = 0;
    for (int64_t i = 0; i < record_set_images(records); i++)
        hash = random_hash(hash, (uint64_t)record_set_label(records, i), 0);
    return hash;
}

static uint64_t hash_training_set(const data *of)
{
    return of->records ? hash_records(of->records) : of->folder ? hash_folder(of->folder) : 0;
}

uint64_t data_hash_identities(const data *of)
{
    return of->records ? hash_records(of->records) : of->folder ? hash_classes(of->folder) : 0;
}

static uint64_t hash_validation_set(const validation_set *set)
{
    uint64_t hash = set->folder ? hash_folder(set->folder) : 0;
    for (int64_t i = 0; set->pairs && i < pair_set_count(set->pairs); i++)
        hash = random_hash(hash, pair_set_same(set->pairs, i), (uint64_t)i);
    return hash;
}

static void write_set(const void *source, int64_t index, char *text)
{
    const data *of = source;
    if (index == 0)
        snprintf(text, IDENTICAL_BYTES, "%" PRId64 " training images of %" PRId64 " identities, hash %016" PRIx64, of->images,
                 of->identities, hash_training_set(of));
    else
        snprintf(text, IDENTICAL_BYTES, "%" PRId64 " images of %s, hash %016" PRIx64,
                 validation_set_images(&of->sets[index - 1]).images, of->sets[index - 1].name,
                 hash_validation_set(&of->sets[index - 1]));
}

shard_status data_open(data *of, const options *wanted)
{
    *of = (data){0};
    bool validates = wanted->training.evaluate || wanted->training.val_interval > 0;
    shard_status status = wanted->training.evaluate ? SHARD_OK : open_training_set(of, wanted);
    if (status == SHARD_OK && validates)
        status = open_validation_sets(of, wanted);
    if (status == SHARD_OK && wanted->training.evaluate && of->count == 0)
        shard_error(SHARD_ERROR_ARGUMENT, "--evaluate: %s has no val/, and there are no --val-targets", wanted->directory);
    status = shard_agree(shard_world()); /* one rank alone may have no file */
    if (status == SHARD_OK)
        status = check_identical("images", "DIR must have the same files on all ranks",
                                 (identical_list){.count = of->count + 1, .write = write_set, .of = of});
    if (status == SHARD_OK && !wanted->training.evaluate)
        status = open_loader(of, wanted);
    return status;
}

void data_close(data *of)
{
    loader_close(of->train);
    image_folder_close(of->folder);
    record_set_close(of->records);
    for (int i = 0; i < of->count; i++) {
        image_folder_close(of->sets[i].folder);
        pair_set_close(of->sets[i].pairs);
    }
    *of = (data){0};
}
