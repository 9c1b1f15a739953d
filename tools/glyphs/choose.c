/*
 * Which characters become classes. Those that the font tables list are
 * candidates; drawing each once tells those whose glyph is empty, or is the
 * same picture as another font's or another character's.
 */
#include "job.h"
#include "png.h"
#include "random.h"

#include <err.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_wanted(const settings *set, uint32_t point)
{
    bool is_private = (point >= 0xE000 && point < 0xF900) || point >= 0xF0000;
    if (point <= 0x20 || is_private)
        return false;
    for (int i = 0; i < set->range_count; i++)
        if (point >= set->ranges[i].first && point <= set->ranges[i].last)
            return true;
    return set->range_count == 0;
}

static bool file_covers(const font_list *list, int file, uint32_t point)
{
    for (int i = 0; i < list->font_count; i++)
        if (list->fonts[i].file == file && font_covers(&list->fonts[i], point))
            return true;
    return false;
}

void print_table(const job *all)
{
    const font_list *list = &all->fonts;
    long *in_files = must(calloc((size_t)list->file_count + 1, sizeof *in_files));
    long *of_file = must(calloc((size_t)list->file_count + 1, sizeof *of_file));
    for (uint32_t point = 0; point < CODE_POINTS; point++) {
        if (!is_wanted(all->set, point))
            continue;
        int files = 0;
        for (int file = 0; file < list->file_count; file++)
            if (file_covers(list, file, point)) {
                of_file[file]++;
                files++;
            }
        for (int k = 1; k <= files; k++)
            in_files[k]++;
    }
    printf("characters  faces  font file\n");
    for (int file = 0; file < list->file_count; file++) {
        int faces = 0;
        bool kept_out = false;
        for (int i = 0; i < list->font_count; i++)
            if (list->fonts[i].file == file) {
                faces++;
                kept_out |= all->kept_out[i];
            }
        printf("%10ld  %5d  %s%s\n", of_file[file], faces, list->files[file].name, kept_out ? "  (kept out)" : "");
    }
    for (int k = 1; k <= list->file_count && in_files[k] > 0; k++)
        printf("%10ld characters are in %d font file%s\n", in_files[k], k, k == 1 ? "" : "s or more");
    free(in_files);
    free(of_file);
}

void keep_fonts_out(job *all)
{
    const name_list *names = &all->set->val_fonts;
    all->kept_out = must(calloc((size_t)all->fonts.font_count + 1, sizeof *all->kept_out));
    all->val = -1;
    for (int n = 0; n < names->count; n++) {
        int first = -1;
        for (int i = all->fonts.font_count - 1; i >= 0; i--)
            if (strcasestr(all->fonts.fonts[i].name, names->names[n])) {
                all->kept_out[i] = true;
                first = i;
            }
        if (first < 0)
            errx(1, "no font here has \"%s\" in its name (see --list)", names->names[n]);
        if (n == 0)
            all->val = first;
    }
}

/* Most training files first, then by code point. */
static int compare_candidates(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    return x->files != y->files ? y->files - x->files : x->point < y->point ? -1 : x->point > y->point;
}

static void find_candidates(job *all)
{
    const font_list *list = &all->fonts;
    long capacity = 1024;
    all->candidates = must(calloc((size_t)capacity, sizeof *all->candidates));
    for (uint32_t point = 0; point < CODE_POINTS; point++) {
        if (!is_wanted(all->set, point) || !font_covers(&list->fonts[all->val], point))
            continue;
        int files = 0, last_file = -1;
        for (int i = 0; i < list->font_count; i++)
            if (!all->kept_out[i] && list->fonts[i].file != last_file && font_covers(&list->fonts[i], point)) {
                files++;
                last_file = list->fonts[i].file;
            }
        if (files < all->set->min_fonts)
            continue;
        if (all->candidate_count == capacity) {
            capacity *= 2;
            all->candidates = must(reallocarray(all->candidates, (size_t)capacity, sizeof *all->candidates));
        }
        all->candidates[all->candidate_count++] = (candidate){.point = point, .files = files};
    }
    qsort(all->candidates, (size_t)all->candidate_count, sizeof *all->candidates, compare_candidates);
}

static uint64_t hash_picture(const uint8_t *pixels, int count)
{
    uint64_t hash = 1;
    for (int i = 0; i < count; i += 8) { /* a multiple of 8: sizes are at least 8 and pixels are size x size */
        uint64_t word = 0;
        memcpy(&word, pixels + i, (size_t)(count - i < 8 ? count - i : 8));
        hash = random_mix(hash ^ word) + RANDOM_STEP;
    }
    return hash ? hash : 1;
}

/* Draws the plain glyph in every font; a picture that an earlier font has too does not count. */
static void look_at(const job *all, const font_faces *open, candidate *one)
{
    static const glyph_style plain = {.scale = 1};
    uint8_t pixels[PNG_MAX_SIZE * PNG_MAX_SIZE];
    int size = (int)all->set->size, last_file = -1, seen = 0;
    if (!glyph_draw(open->faces[all->val], one->point, &plain, size, pixels))
        return;
    uint64_t *looks = must(calloc((size_t)open->count + 1, sizeof *looks));
    looks[seen++] = one->look = hash_picture(pixels, size * size);
    for (int i = 0; i < open->count; i++) {
        if (all->kept_out[i] || !font_covers(&all->fonts.fonts[i], one->point) ||
            !glyph_draw(open->faces[i], one->point, &plain, size, pixels))
            continue;
        uint64_t look = hash_picture(pixels, size * size);
        bool copy = false;
        for (int k = 0; k < seen; k++)
            copy |= looks[k] == look;
        one->copies += copy;
        if (copy)
            continue;
        looks[seen++] = look;
        one->usable[i] = 1;
        one->usable_files += all->fonts.fonts[i].file != last_file;
        last_file = all->fonts.fonts[i].file;
    }
    free(looks);
}

static void *look_at_candidates(void *argument)
{
    job *all = argument;
    font_faces open = font_faces_open(&all->fonts);
    for (long i; (i = atomic_fetch_add(&all->next, 1)) < all->looked_at;) {
        all->candidates[i].usable = must(calloc((size_t)all->fonts.font_count, 1));
        look_at(all, &open, &all->candidates[i]);
        show_progress("looked at character", i + 1, all->looked_at);
    }
    font_faces_close(&open);
    return NULL;
}

/* A set of looks, open addressing, never full. */
typedef struct look_set {
    uint64_t *looks;
    size_t slots; /* a power of two */
} look_set;

static bool add_look(look_set *set, uint64_t look)
{
    size_t at = look & (set->slots - 1);
    for (; set->looks[at]; at = (at + 1) & (set->slots - 1))
        if (set->looks[at] == look)
            return false;
    set->looks[at] = look;
    return true;
}

static int compare_classes(const void *a, const void *b)
{
    const candidate *const *x = a, *const *y = b;
    return (*x)->point < (*y)->point ? -1 : (*x)->point > (*y)->point;
}

/* The numbers of characters that were left out, by reason. */
typedef struct counts {
    long few, twins, copies;
} counts;

/* Adds the results of the last round, in the candidates' order. */
static void take_round(job *all, long first, look_set *looks, counts *out)
{
    for (long i = first; i < all->looked_at; i++) {
        candidate *one = &all->candidates[i];
        if (!one->look || one->usable_files < all->set->min_fonts) {
            out->few++;
        } else if (!add_look(looks, one->look)) {
            out->twins++;
        } else {
            out->copies += one->copies;
            all->classes[all->class_count++] = one;
        }
    }
}

/* Looks at as many candidates as classes are missing, until none are. */
void choose_classes(job *all)
{
    find_candidates(all);
    long least = all->set->classes ? all->set->classes : 1;
    long wanted = all->set->classes ? all->set->classes : all->candidate_count;
    look_set looks = {.slots = 1024};
    while (looks.slots < (size_t)all->candidate_count * 2)
        looks.slots *= 2;
    looks.looks = must(calloc(looks.slots, sizeof *looks.looks));
    all->classes = must(calloc((size_t)all->candidate_count + 1, sizeof(candidate *)));
    counts out = {0};
    while (all->class_count < wanted && all->looked_at < all->candidate_count) {
        long first = all->looked_at, missing = wanted - all->class_count, left = all->candidate_count - first;
        all->looked_at = first + (missing < left ? missing : left);
        run_threads(all, look_at_candidates, first);
        take_round(all, first, &looks, &out);
    }
    free(looks.looks);
    qsort(all->classes, (size_t)all->class_count, sizeof *all->classes, compare_classes);
    printf("%ld classes of %ld characters; left out: %ld that too few fonts draw, %ld that look like another one, "
           "%ld glyphs that another font has bit for bit\n",
           all->class_count, all->looked_at, out.few, out.twins, out.copies);
    if (all->class_count < least)
        errx(1, "%ld classes are too few: install more fonts, or lower --min-fonts or --classes", all->class_count);
}
