/* The pictures of all classes. */
#include "job.h"
#include "png.h"
#include "random.h"

#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static glyph_style variant_style(const char *font_name, uint32_t point, long variant)
{
    if (variant == 0)
        return (glyph_style){.scale = 1};
    uint64_t font_hash = 0;
    for (const char *c = font_name; *c; c++)
        font_hash = random_mix(font_hash + (uint8_t)*c + RANDOM_STEP);
    random_stream random = random_start(font_hash, point, (uint64_t)variant);
    return (glyph_style){
        .turn = random_between(&random, -0.12, 0.12),
        .slant = random_between(&random, -0.15, 0.15),
        .stretch = random_between(&random, -0.2, 0.2),
        .weight = random_between(&random, -0.01, 0.035),
        .scale = random_between(&random, 0.8, 1),
        .right = random_between(&random, -1, 1),
        .up = random_between(&random, -1, 1),
    };
}

static void write_file(int folder, const char *name, const uint8_t *bytes, size_t count)
{
    int file = openat(folder, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (file < 0 || write(file, bytes, count) != (ssize_t)count || close(file) != 0)
        err(1, "%s", name);
}

static void draw_image(job *all, const font_faces *open, int folder, const char *name, int which, uint32_t point,
                       const glyph_style *style)
{
    uint8_t pixels[PNG_MAX_SIZE * PNG_MAX_SIZE], file[PNG_MAX_BYTES];
    if (!glyph_draw(open->faces[which], point, style, (int)all->set->size, pixels))
        return; /* a style can make a hair-thin glyph vanish */
    write_file(folder, name, file, png_encode(pixels, (int)all->set->size, file));
    all->images++;
}

static int class_folder(int parent, uint32_t point)
{
    char name[16];
    snprintf(name, sizeof name, "%06X", point);
    if (mkdirat(parent, name, 0777) != 0 && errno != EEXIST)
        err(1, "%s", name);
    int folder = openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0)
        err(1, "%s", name);
    return folder;
}

static void draw_class(job *all, const font_faces *open, const candidate *one)
{
    char name[NAME_MAX + 1];
    static const glyph_style plain = {.scale = 1};
    int folder = class_folder(all->val_folder, one->point);
    snprintf(name, sizeof name, "%.200s.png", all->fonts.fonts[all->val].name);
    draw_image(all, open, folder, name, all->val, one->point, &plain);
    close(folder);
    folder = class_folder(all->train_folder, one->point);
    for (int i = 0; i < all->fonts.font_count; i++)
        for (long variant = 0; one->usable[i] && variant < all->set->variants; variant++) {
            glyph_style style = variant_style(all->fonts.fonts[i].name, one->point, variant);
            snprintf(name, sizeof name, "%.200s-%ld.png", all->fonts.fonts[i].name, variant);
            draw_image(all, open, folder, name, i, one->point, &style);
        }
    close(folder);
}

static void *draw_thread(void *argument)
{
    job *all = argument;
    font_faces open = font_faces_open(&all->fonts);
    for (long i; (i = atomic_fetch_add(&all->next, 1)) < all->class_count;) {
        draw_class(all, &open, all->classes[i]);
        show_progress("drew class", i + 1, all->class_count);
    }
    font_faces_close(&open);
    return NULL;
}

void draw_classes(job *all)
{
    run_threads(all, draw_thread, 0);
}
