/* The output while it runs: a bar on a terminal, else a line now and then. Of rank 0 only. */
#ifndef COMMON_PROGRESS_H
#define COMMON_PROGRESS_H

#include <shard/base.h>

typedef struct progress {
    bool shown;    /* this is the rank that prints */
    bool terminal; /* standard output is a terminal */
    bool open;     /* the current line is a bar */
    int64_t every; /* steps between lines */
    double drawn;  /* the time of the bar's last update */
} progress;

/* Lines, if any, are `every` steps apart. */
progress progress_start(int64_t every);

/* Reports that step `done` of `steps` is done; title names the phase, text its results. */
void progress_step(progress *shown, const char *title, int64_t done, int64_t steps, const char *text);

/* Prints a line that stays. */
void progress_say(progress *shown, const char *format, ...) SHARD_PRINTF(2, 3);

/* Seconds of a clock that only goes forward. */
double progress_clock(void);

#endif
