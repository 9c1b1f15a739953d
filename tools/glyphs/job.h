/* One run of make-glyphs: the options, the fonts and characters, the state of drawing. */
#ifndef GLYPHS_JOB_H
#define GLYPHS_JOB_H

#include "font.h"

#include <stdatomic.h>

#define MAX_RANGES 64
#define MAX_NAMES 256
#define MAX_THREADS 1024

typedef struct range {
    uint32_t first, last;
} range;

/* An option's list, split at commas. */
typedef struct name_list {
    char *names[MAX_NAMES];
    int count;
} name_list;

typedef struct settings {
    const char *out;
    name_list wishes;    /* --fonts */
    name_list val_fonts; /* kept out of training; the first one draws OUT/val */
    range ranges[MAX_RANGES];
    int range_count;
    long classes; /* 0: all */
    long min_fonts, size, variants, threads;
    bool list, dry_run;
} settings;

/* A class that may be. */
typedef struct candidate {
    uint32_t point;
    int files;       /* training files that list the code point */
    uint64_t look;   /* hash of the kept-out font's picture; 0 if it has none */
    uint8_t *usable; /* [fonts]: a training font with a picture of its own */
    int usable_files;
    int copies; /* pictures that another font has bit for bit */
} candidate;

typedef struct job {
    const settings *set;
    font_list fonts;
    bool *kept_out; /* [fonts] */
    int val;        /* the font that draws OUT/val */
    candidate *candidates;
    long candidate_count;
    long looked_at; /* of the candidates, up to the end of the present round */
    candidate **classes;
    long class_count;
    int train_folder, val_folder; /* directories */
    atomic_long next;             /* of the work that threads share */
    atomic_long images;
} job;

/* settings.c: ends the program if the command line is wrong. */
settings parse_arguments(int argc, char **argv);

/* choose.c: sets kept_out and val from the names. */
void keep_fonts_out(job *all);

/* Which font file has how many characters, and how many characters are in how many files. */
void print_table(const job *all);

/* Sets classes: the characters that most training files have, sorted by code point. */
void choose_classes(job *all);

/* draw.c: all pictures of all classes. */
void draw_classes(job *all);

/* make_glyphs.c: body(job) in each of the threads, job->next starting at first. */
void run_threads(job *all, void *(*body)(void *), long first);
void show_progress(const char *what, long done, long whole);

/* Ends the program if there is no memory. */
void *must(void *memory);

#endif
