#include "dataset.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>

#define DEFAULT_CLASSES 1000
#define PREFETCH 2 /* batches made ahead */

static image_folder *open_folder(const char *directory, const char *split, const image_folder *classes)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/%s", directory, split) >= (int)sizeof path) {
        shard_error(SHARD_ERROR_IO, "%s: a path of more than %d bytes", directory, PATH_MAX - 1);
        return NULL;
    }
    return image_folder_open(path, classes);
}

static shard_status open_folders(dataset *data, const options *wanted, bool validate)
{
    data->train_folder = open_folder(wanted->directory, "train", NULL);
    if (!data->train_folder)
        return shard_last_status();
    int64_t found = image_folder_classes(data->train_folder);
    data->num_classes = wanted->num_classes ? wanted->num_classes : found;
    if (found > data->num_classes)
        return shard_error(SHARD_ERROR_ARGUMENT, "--num-classes %" PRId64 ": %s/train has %" PRId64, data->num_classes,
                           wanted->directory, found);
    data->train_images = image_folder_images(data->train_folder);
    if (!validate)
        return SHARD_OK;
    data->val_folder = open_folder(wanted->directory, "val", data->train_folder);
    if (!data->val_folder)
        return shard_last_status();
    data->val_images = image_folder_images(data->val_folder);
    return SHARD_OK;
}

static loader *open_loader(const dataset *data, const options *wanted, const shard_group *group, bool training)
{
    return loader_open(&(loader_options){
        .device = shard_device_open(NULL),
        .folder = training ? data->train_folder : data->val_folder,
        .made_up = {.samples = training ? data->train_images : data->val_images,
                    .first = training ? 0 : data->train_images,
                    .num_classes = data->num_classes},
        .batch = wanted->batch / wanted->accumulate,
        .seed = (uint64_t)wanted->seed,
        .training = training,
        .augment = {.crop_scale = wanted->crop_scale, .shift = wanted->shift, .flip = !wanted->no_flip},
        .image_size = wanted->image_size,
        .rank = shard_group_rank(group),
        .ranks = shard_group_size(group),
        .workers = (int)wanted->workers,
        .prefetch = PREFETCH,
        .skip_bad = wanted->skip_bad_images,
    });
}

shard_status dataset_open(dataset *data, const options *wanted, const shard_group *group)
{
    *data = (dataset){0};
    bool validate = wanted->evaluate || wanted->val_interval > 0;
    if (wanted->directory) {
        shard_status status = open_folders(data, wanted, validate);
        if (status != SHARD_OK)
            return status;
    } else {
        data->num_classes = wanted->num_classes ? wanted->num_classes : DEFAULT_CLASSES;
        data->train_images = wanted->synthetic;
        data->val_images = (wanted->synthetic + 9) / 10;
    }
    if (!wanted->evaluate && !(data->train = open_loader(data, wanted, group, true)))
        return shard_last_status();
    if (validate && !(data->val = open_loader(data, wanted, group, false)))
        return shard_last_status();
    return SHARD_OK;
}

void dataset_close(dataset *data)
{
    loader_close(data->train);
    loader_close(data->val);
    image_folder_close(data->train_folder);
    image_folder_close(data->val_folder);
    *data = (dataset){0};
}
