/* What a user sees while it runs: a bar on a terminal, else a line now and then. Of rank 0 only. */
#ifndef IMAGENET_PROGRESS_H
#define IMAGENET_PROGRESS_H

#include <shard/base.h>

typedef struct progress {
    bool shown;    /* this is the rank that prints */
    bool terminal; /* standard output is one of the user's */
    bool open;     /* a bar stands on the current line */
    int64_t every; /* steps between lines */
    double drawn;  /* when the bar was last drawn */
} progress;

/* Lines, if any, come every so many steps. */
progress progress_start(int64_t every);

/* Step `done` of `steps` of what `title` names is done; text says how it goes. */
void progress_step(progress *shown, const char *title, int64_t done, int64_t steps, const char *text);

/* A line that stays. */
void progress_say(progress *shown, const char *format, ...) SHARD_PRINTF(2, 3);

/* Seconds of a clock that only goes forward. */
double progress_clock(void);

#endif
