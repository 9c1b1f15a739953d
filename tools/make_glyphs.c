/*
 * make-glyphs: draws Unicode characters from installed fonts into an image
 * folder, OUT/train/<class>/<font>-<variant>.png and OUT/val/<class>/<font>.png.
 * A class is a code point, six hexadecimal digits, so that sorted names are in
 * the order of code points. The fonts that --val-font names are kept out of
 * training.
 *
 * OUT/.make-glyphs says what the folder was drawn from; its last line, "done",
 * is there only if all of it was. So the same command again is at once done,
 * and another one redraws only a folder that is make-glyphs's own.
 */
#include "clock.h"

#include "glyphs/job.h"

#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void *must(void *memory)
{
    if (!memory)
        errx(1, "no memory left");
    return memory;
}

void run_threads(job *all, void *(*body)(void *), long first)
{
    pthread_t threads[MAX_THREADS];
    long started = 0;
    all->next = first;
    while (started < all->set->threads && pthread_create(&threads[started], NULL, body, all) == 0)
        started++;
    if (started == 0)
        errx(1, "no thread can be started");
    for (long i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
}

void show_progress(const char *what, long done, long whole)
{
    if (isatty(STDERR_FILENO) && (done % 1000 == 0 || done == whole))
        fprintf(stderr, "\r%s %ld of %ld%s", what, done, whole, done == whole ? "\n" : "");
}

/* ---- the stamp ---- */

static char *stamp_path(const settings *set)
{
    char *path;
    if (asprintf(&path, "%s/.make-glyphs", set->out) < 0)
        errx(1, "no memory left");
    return path;
}

/* The settings that determine every byte of the folder. */
static char *describe(const job *all)
{
    const settings *set = all->set;
    char *text = NULL;
    size_t size;
    FILE *stream = must(open_memstream(&text, &size));
    fprintf(stream, "make-glyphs 1\nclasses %ld\nmin-fonts %ld\nsize %ld\nvariants %ld\n", set->classes, set->min_fonts,
            set->size, set->variants);
    for (int i = 0; i < set->val_fonts.count; i++)
        fprintf(stream, "val-font %s\n", set->val_fonts.names[i]);
    for (int i = 0; i < set->range_count; i++)
        fprintf(stream, "range %X-%X\n", set->ranges[i].first, set->ranges[i].last);
    for (int i = 0; i < all->fonts.file_count; i++)
        fprintf(stream, "font %s %" PRId64 " %" PRId64 "\n", all->fonts.files[i].path, all->fonts.files[i].bytes,
                all->fonts.files[i].modified);
    if (fclose(stream) != 0)
        errx(1, "no memory left");
    return text;
}

/* The text of a small file; NULL if there is none. */
static char *read_text(const char *path)
{
    FILE *file = fopen(path, "r");
    if (!file)
        return NULL;
    char *text = NULL;
    size_t capacity = 0;
    if (getdelim(&text, &capacity, '\0', file) < 0) {
        free(text);
        text = must(strdup(""));
    }
    fclose(file);
    return text;
}

static void write_text(const char *path, const char *text, const char *end)
{
    FILE *file = fopen(path, "w");
    if (!file || fprintf(file, "%s%s", text, end) < 0 || fclose(file) != 0)
        err(1, "%s", path);
}

/* ---- the folder ---- */

static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *where)
{
    (void)status, (void)kind, (void)where;
    if (remove(path) != 0)
        err(1, "%s", path);
    return 0;
}

static int make_split(const settings *set, const char *split)
{
    char *path;
    if (asprintf(&path, "%s/%s", set->out, split) < 0)
        errx(1, "no memory left");
    if (nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS) != 0 && errno != ENOENT)
        err(1, "%s", path);
    if (mkdir(path, 0777) != 0)
        err(1, "%s", path);
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0)
        err(1, "%s", path);
    free(path);
    return folder;
}

/* Makes the folder anew. Its content is removed if make-glyphs has made it. */
static void make_folder(job *all, const char *stamp, const char *description)
{
    const char *out = all->set->out;
    if (mkdir(out, 0777) != 0 && errno != EEXIST)
        err(1, "%s", out);
    if (rmdir(out) == 0 ? mkdir(out, 0777) != 0 : access(stamp, F_OK) != 0)
        errx(1, "%s is not empty and not made by make-glyphs: remove it or choose another folder", out);
    write_text(stamp, description, "");
    all->train_folder = make_split(all->set, "train");
    all->val_folder = make_split(all->set, "val");
}

static void draw_folder(job *all, const char *stamp, const char *description)
{
    double start = now();
    choose_classes(all);
    if (all->set->dry_run)
        return;
    make_folder(all, stamp, description);
    draw_classes(all);
    char done[200];
    snprintf(done, sizeof done, "done: %ld classes, %ld training and %ld validation images of %ld x %ld pixels\n",
             all->class_count, all->images - all->class_count, all->class_count, all->set->size, all->set->size);
    write_text(stamp, description, done);
    printf("%s %s", all->set->out, done);
    printf("%.1f s\n", now() - start);
}

int main(int argc, char **argv)
{
    static settings set; /* these two live as long as the program */
    static job all;
    setvbuf(stdout, NULL, _IOLBF, 0);
    set = parse_arguments(argc, argv);
    all.set = &set;
    fonts_find(&all.fonts, set.wishes.names, set.wishes.count);
    char *stamp = set.out ? stamp_path(&set) : NULL, *description = describe(&all);
    char *before = stamp ? read_text(stamp) : NULL;
    size_t length = strlen(description);
    if (before && !set.list && !set.dry_run && strncmp(before, description, length) == 0 && before[length]) {
        printf("%s is there already; %s", set.out, before + length);
    } else {
        fonts_open(&all.fonts);
        keep_fonts_out(&all);
        print_table(&all);
        if (!set.list)
            draw_folder(&all, stamp, description);
    }
    free(stamp);
    free(description);
    free(before);
    return 0;
}
