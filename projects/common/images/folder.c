/*
 * An image folder. All names are in one block of memory, one after the other; a class and an image are offsets into
 * it.
 */
#include "folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

/* Offsets into names.bytes. */
typedef struct name_list {
    size_t *offset;
    int64_t count;
    size_t capacity;
} name_list;

struct image_folder {
    char *split;
    struct {
        char *bytes;
        size_t size, capacity;
    } names;
    name_list classes, images;
    int64_t left_out; /* entries of the classes' folders that are no images by their names */
    int32_t *label; /* of each image */
    size_t label_capacity;
};

static shard_status grow(void *memory, size_t *capacity, size_t count, size_t size)
{
    if (count <= *capacity)
        return SHARD_OK;
    size_t grown = *capacity + *capacity / 2 + 64;
    if (grown < count)
        grown = count;
    void **slot = memory, *larger = reallocarray(*slot, grown, size);
    if (!larger)
        return shard_error(SHARD_ERROR_MEMORY, "no memory for the names of %zu images", grown);
    *slot = larger;
    *capacity = grown;
    return SHARD_OK;
}

static shard_status add_name(image_folder *folder, name_list *list, const char *name)
{
    size_t bytes = strlen(name) + 1;
    shard_status status = grow(&folder->names.bytes, &folder->names.capacity, folder->names.size + bytes, 1);
    if (status == SHARD_OK)
        status = grow(&list->offset, &list->capacity, (size_t)list->count + 1, sizeof *list->offset);
    if (status != SHARD_OK)
        return status;
    memcpy(folder->names.bytes + folder->names.size, name, bytes);
    list->offset[list->count++] = folder->names.size;
    folder->names.size += bytes;
    return SHARD_OK;
}

static int compare_names(const void *a, const void *b, void *bytes)
{
    return strcmp((const char *)bytes + *(const size_t *)a, (const char *)bytes + *(const size_t *)b);
}

static void sort_names(image_folder *folder, name_list *list, int64_t from)
{
    qsort_r(list->offset + from, (size_t)(list->count - from), sizeof *list->offset, compare_names, folder->names.bytes);
}

static bool has_image_suffix(const char *name)
{
    const char *suffix = strrchr(name, '.');
    return suffix && (strcasecmp(suffix, ".jpg") == 0 || strcasecmp(suffix, ".jpeg") == 0 || strcasecmp(suffix, ".png") == 0);
}

static bool is_directory(int parent, const struct dirent *entry)
{
    if (entry->d_type != DT_UNKNOWN && entry->d_type != DT_LNK)
        return entry->d_type == DT_DIR;
    struct stat status;
    return fstatat(parent, entry->d_name, &status, 0) == 0 && S_ISDIR(status.st_mode);
}

static shard_status cannot_read(const image_folder *folder, const char *class_name)
{
    return shard_error(SHARD_ERROR_IO, "%s%s%s: %s", folder->split, *class_name ? "/" : "", class_name, strerror(errno));
}

/* The next entry whose name does not begin with a dot; NULL at the end (errno 0) and on error. */
static struct dirent *next_entry(DIR *directory)
{
    struct dirent *entry;
    do {
        errno = 0;
        entry = readdir(directory);
    } while (entry && entry->d_name[0] == '.');
    return entry;
}

static shard_status read_classes(image_folder *folder, DIR *directory)
{
    struct dirent *entry;
    while ((entry = next_entry(directory))) {
        if (!is_directory(dirfd(directory), entry)) {
            if (has_image_suffix(entry->d_name))
                return shard_error(SHARD_ERROR_FORMAT, "%s/%s: an image outside of a class; images belong into %s/<class>/",
                                   folder->split, entry->d_name, folder->split);
            continue;
        }
        shard_status status = add_name(folder, &folder->classes, entry->d_name);
        if (status != SHARD_OK)
            return status;
    }
    if (errno)
        return cannot_read(folder, "");
    if (folder->classes.count == 0)
        return shard_error(SHARD_ERROR_FORMAT, "%s: no classes; images belong into %s/<class>/", folder->split, folder->split);
    if (folder->classes.count > INT32_MAX)
        return shard_error(SHARD_ERROR_UNSUPPORTED, "%s: %" PRId64 " classes", folder->split, folder->classes.count);
    sort_names(folder, &folder->classes, 0);
    return SHARD_OK;
}

static shard_status read_entries(image_folder *folder, DIR *directory, const char *class_name)
{
    struct dirent *entry;
    while ((entry = next_entry(directory))) {
        if (!has_image_suffix(entry->d_name)) {
            folder->left_out++;
            continue;
        }
        shard_status status = add_name(folder, &folder->images, entry->d_name);
        if (status != SHARD_OK)
            return status;
    }
    return errno ? cannot_read(folder, class_name) : SHARD_OK;
}

/* class_name must not be in folder->names, which may move. */
static shard_status read_images(image_folder *folder, int split, const char *class_name, int32_t label)
{
    int64_t before = folder->images.count;
    int descriptor = openat(split, class_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *directory = descriptor < 0 ? NULL : fdopendir(descriptor);
    if (!directory) {
        shard_status status = cannot_read(folder, class_name);
        if (descriptor >= 0)
            close(descriptor);
        return status;
    }
    shard_status status = read_entries(folder, directory, class_name);
    closedir(directory);
    if (status != SHARD_OK)
        return status;
    if (folder->images.count == before)
        return shard_error(SHARD_ERROR_FORMAT, "%s/%s: a class without images (*.jpg, *.jpeg, *.png)", folder->split, class_name);
    sort_names(folder, &folder->images, before);
    status = grow(&folder->label, &folder->label_capacity, (size_t)folder->images.count, sizeof *folder->label);
    for (int64_t i = before; i < folder->images.count && status == SHARD_OK; i++)
        folder->label[i] = label;
    return status;
}

static const char *name_at(const image_folder *folder, size_t offset)
{
    return folder->names.bytes + offset;
}

/* The class' number; -1 if there is none. */
static int64_t find_class(const image_folder *folder, const char *name)
{
    int64_t low = 0, high = folder->classes.count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        int order = strcmp(name, name_at(folder, folder->classes.offset[middle]));
        if (order == 0)
            return middle;
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return -1;
}

static shard_status read_all_images(image_folder *folder, int split, const image_folder *known)
{
    for (int64_t i = 0; i < folder->classes.count; i++) {
        char class_name[NAME_MAX + 1];
        snprintf(class_name, sizeof class_name, "%s", name_at(folder, folder->classes.offset[i]));
        int64_t label = known ? find_class(known, class_name) : i;
        if (label < 0)
            return shard_error(SHARD_ERROR_FORMAT, "%s/%s: %s has no such class", folder->split, class_name, known->split);
        shard_status status = read_images(folder, split, class_name, (int32_t)label);
        if (status != SHARD_OK)
            return status;
    }
    return SHARD_OK;
}

/* Copies the names of another folder's classes, in its order. */
static shard_status copy_classes(image_folder *folder, const image_folder *known)
{
    folder->classes.count = 0;
    for (int64_t i = 0; i < known->classes.count; i++) {
        shard_status status = add_name(folder, &folder->classes, name_at(known, known->classes.offset[i]));
        if (status != SHARD_OK)
            return status;
    }
    return SHARD_OK;
}

static shard_status read_folder(image_folder *folder, const image_folder *known)
{
    DIR *directory = opendir(folder->split);
    if (!directory)
        return cannot_read(folder, "");
    shard_status status = read_classes(folder, directory);
    if (status == SHARD_OK)
        status = read_all_images(folder, dirfd(directory), known);
    closedir(directory);
    if (status == SHARD_OK && known)
        status = copy_classes(folder, known);
    return status;
}

image_folder *image_folder_open(const char *split, const image_folder *classes)
{
    image_folder *folder = calloc(1, sizeof *folder);
    if (!folder || !(folder->split = strdup(split))) {
        shard_error(SHARD_ERROR_MEMORY, "no memory for the image folder %s", split);
        image_folder_close(folder);
        return NULL;
    }
    if (read_folder(folder, classes) != SHARD_OK) {
        image_folder_close(folder);
        return NULL;
    }
    return folder;
}

void image_folder_close(image_folder *folder)
{
    if (!folder)
        return;
    free(folder->split);
    free(folder->names.bytes);
    free(folder->classes.offset);
    free(folder->images.offset);
    free(folder->label);
    free(folder);
}

int64_t image_folder_classes(const image_folder *folder)
{
    return folder->classes.count;
}

int64_t image_folder_images(const image_folder *folder)
{
    return folder->images.count;
}

void image_folder_report(const image_folder *folder, progress *shown)
{
    if (folder && folder->left_out)
        progress_say(shown, "%s: %" PRId64 " files or folders in its classes are not *.jpg, *.jpeg or *.png: they are left out",
                     folder->split, folder->left_out);
}

const char *image_folder_class_name(const image_folder *folder, int64_t label)
{
    return name_at(folder, folder->classes.offset[label]);
}

int64_t image_folder_label(const image_folder *folder, int64_t image)
{
    return folder->label[image];
}

const char *image_folder_name(const image_folder *folder, int64_t image)
{
    return name_at(folder, folder->images.offset[image]);
}

bool image_folder_path(const image_folder *folder, int64_t image, char *path, size_t size)
{
    int length = snprintf(path, size, "%s/%s/%s", folder->split, image_folder_class_name(folder, folder->label[image]),
                          name_at(folder, folder->images.offset[image]));
    return length >= 0 && (size_t)length < size;
}
