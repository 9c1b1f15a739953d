/* Where images are: a folder, the records of one file, or a program's own. */
#ifndef IMAGES_SOURCE_H
#define IMAGES_SOURCE_H

#include "folder.h"
#include "image.h"

/* Its functions are called by several threads. */
typedef struct image_source {
    const void *of;
    int64_t images;
    int64_t (*label)(const void *of, int64_t number);
    /* Sets the image's bytes and its name for errors. Errors: FORMAT and IO are the image's fault. NULL: there is no source. */
    shard_status (*read)(const void *of, int64_t number, image_file *file);
} image_source;

/* A folder's images, with their classes as labels; borrowed. None of NULL. */
image_source image_source_of_folder(const image_folder *folder);

#endif
