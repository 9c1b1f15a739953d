/*
 * An image folder, as torchvision.datasets.ImageFolder reads it:
 * SPLIT/<class>/NAME.{jpg,jpeg,png}. Classes are numbered by their sorted names
 * (byte order), images by class and then by sorted name. Meant for many classes
 * of few images: each directory is read once, an image takes its name and 12 bytes.
 */
#ifndef IMAGES_FOLDER_H
#define IMAGES_FOLDER_H

#include "progress.h"

#include <shard/base.h>

typedef struct image_folder image_folder;

/*
 * Reads the names under `split` (DIR/train). If `classes` is given (a training
 * split read before), its numbering is used: a class here that it doesn't have
 * is an error, one that is missing here is not. Names that begin with a dot
 * are passed over, and so are files of other kinds.
 * Errors (NULL): IO, and FORMAT for no classes, a class without images, an
 * unknown class, a file where a class belongs.
 */
image_folder *image_folder_open(const char *split, const image_folder *classes);
void image_folder_close(image_folder *folder);

int64_t image_folder_classes(const image_folder *folder);
int64_t image_folder_images(const image_folder *folder);
const char *image_folder_class_name(const image_folder *folder, int64_t label);

/* Says how many files and folders in the classes' folders are left out, if there are some. NULL is ignored. */
void image_folder_report(const image_folder *folder, progress *shown);

/* The class of image 0 ... images - 1. */
int64_t image_folder_label(const image_folder *folder, int64_t image);

/* The image's file name; belongs to the folder. */
const char *image_folder_name(const image_folder *folder, int64_t image);

/* Writes the image's path; false if it doesn't fit in `size` bytes. */
bool image_folder_path(const image_folder *folder, int64_t image, char *path, size_t size);

#endif
