#include "source.h"

#include <limits.h>

static int64_t folder_label(const void *of, int64_t number)
{
    return image_folder_label(of, number);
}

static shard_status folder_read(const void *of, int64_t number, image_file *file)
{
    char path[PATH_MAX];
    if (!image_folder_path(of, number, path, sizeof path))
        return shard_error(SHARD_ERROR_IO, "%s: a path of more than %d bytes", path, PATH_MAX - 1);
    return image_file_read(file, path);
}

image_source image_source_of_folder(const image_folder *folder)
{
    if (!folder)
        return (image_source){0};
    return (image_source){.of = folder, .images = image_folder_images(folder), .label = folder_label, .read = folder_read};
}
