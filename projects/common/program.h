/* The main function of a program: the job, the command line, the exit code. */
#ifndef COMMON_PROGRAM_H
#define COMMON_PROGRAM_H

#include "command_line.h"

typedef struct program {
    const command_line *line;
    void *values;                         /* the struct of the line */
    shard_status (*check)(void *values);  /* ARGUMENT for options that do not fit together */
    shard_status (*run)(void *values);    /* collective over the world */
} program;

/* Reads the options, compares them over the ranks, and runs, or prints the help. The exit code: 0; 1 after an error; 128 and the
 * signal's number after a Ctrl-C or a SIGTERM (interrupt.h). */
int program_main(const program *of, int argc, char **argv);

#endif
