#include "dataset.h"

#include "files.h"
#include "identical.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>

#define DEFAULT_CLASSES 1000
#define PREFETCH 2 /* batches that are loaded ahead */

static image_folder *open_folder(const char *directory, const char *split, const image_folder *classes)
{
    char path[PATH_MAX];
    return files_join(path, "DIR", directory, split) == SHARD_OK ? image_folder_open(path, classes) : NULL;
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
        .source = image_source_of_folder(training ? data->train_folder : data->val_folder),
        .made_up = {.samples = training ? data->train_images : data->val_images,
                    .first = training ? 0 : data->train_images,
                    .num_classes = data->num_classes},
        .batch = wanted->training.batch / wanted->accumulate,
        .seed = (uint64_t)wanted->training.seed,
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
    bool validate = wanted->training.evaluate || wanted->training.val_interval > 0;
    if (wanted->directory) {
        shard_status status = open_folders(data, wanted, validate);
        if (status != SHARD_OK)
            return status;
    } else {
        data->num_classes = wanted->num_classes ? wanted->num_classes : DEFAULT_CLASSES;
        data->train_images = wanted->synthetic;
        data->val_images = (wanted->synthetic + 9) / 10;
    }
    if (!wanted->training.evaluate && !(data->train = open_loader(data, wanted, group, true)))
        return shard_last_status();
    if (validate && !(data->val = open_loader(data, wanted, group, false)))
        return shard_last_status();
    return SHARD_OK;
}

/* The number of files whose sizes are compared: a stat for each, on a file system that may be remote. */
#define MOST_SIZES 4096

/* "train/class/name", and every n-th file's size. */
static void write_image(const void *of, int64_t index, char *text)
{
    const dataset *data = of;
    bool training = index < data->train_images;
    const image_folder *folder = training ? data->train_folder : data->val_folder;
    int64_t number = training ? index : index - data->train_images, each = image_folder_images(folder) / MOST_SIZES + 1;
    int used = snprintf(text, IDENTICAL_BYTES, "%s/%s/%s", training ? "train" : "val",
                        image_folder_class_name(folder, image_folder_label(folder, number)), image_folder_name(folder, number));
    char path[PATH_MAX];
    struct stat found;
    if (number % each == 0 && used < IDENTICAL_BYTES && image_folder_path(folder, number, path, sizeof path) &&
        stat(path, &found) == 0)
        snprintf(text + used, IDENTICAL_BYTES - (size_t)used, " of %" PRId64 " bytes", (int64_t)found.st_size);
}

shard_status dataset_check_identical(const dataset *data)
{
    if (!data->train_folder)
        return SHARD_OK;
    return check_identical("images", "DIR must have the same files on all ranks",
                           (identical_list){.count = data->train_images + data->val_images, .write = write_image, .of = data});
}

void dataset_close(dataset *data)
{
    loader_close(data->train);
    loader_close(data->val);
    image_folder_close(data->train_folder);
    image_folder_close(data->val_folder);
    *data = (dataset){0};
}
