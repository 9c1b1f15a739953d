/* The main function of a program: the job, the command line, the exit code. */
#ifndef COMMON_PROGRAM_H
#define COMMON_PROGRAM_H

#include "command_line.h"

typedef struct program {
    const command_line *line;
    void *values;                        /* the struct of the line */
    shard_status (*check)(void *values); /* ARGUMENT for options that do not fit together; NULL: all do */
    shard_status (*run)(void *values);   /* collective over the world */
    bool watches;                        /* the run asks interrupt_signal (interrupt.h); else a Ctrl-C ends it at once */
} program;

/* Reads the options, compares them over the ranks, and runs, or prints the help. The exit code: 0; 1 after an error; 128 and the
 * signal's number after a Ctrl-C, a SIGTERM or a SIGHUP that the run has watched. */
int program_main(const program *of, int argc, char **argv);

#endif
