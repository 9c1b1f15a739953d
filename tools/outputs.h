/*
 * The output of shardrun: its messages, and with --tag the lines of ranks. Text is kept until there is room for it, so
 * that signals and ends of ranks are seen while a reader pauses. As long as text is kept, no more is read from ranks:
 * they wait, as they would for the reader itself.
 */
#ifndef TOOLS_OUTPUTS_H
#define TOOLS_OUTPUTS_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>

/* One stream of a rank that is copied line by line. */
typedef struct stream {
    int rank;
    int from, to; /* a pipe, -1: none (any more); STDOUT_FILENO or STDERR_FILENO */
    size_t used, capacity;
    char *line; /* its bytes so far */
    size_t rest; /* bytes that are still read of it; SIZE_MAX: all */
} stream;

/* When all ranks have been started: they inherit the action of SIGALRM, which this changes. */
void outputs_open(void);

/* Frees the memory of what is kept. */
void outputs_close(void);

/* A message on standard error; kept, as any text. */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Whether text is kept. */
bool outputs_wait(void);

/* The descriptor to poll for output 0 or 1, and the function to call when it is ready. */
struct pollfd output_poll(int number);
void output_write(int number);

/* Loses what is kept, and all that comes. */
void outputs_give_up(void);

/* The first error by which text was lost; 0: none. A reader that has closed its end is no error. */
int outputs_error(void);

/* False without memory. */
bool stream_open(stream *s, int rank, int from, int to);

void stream_close(stream *s);

/* The descriptor to poll for a rank's stream, and the function to call when it is ready. A stream whose reader has gone is
 * closed: the rank's next write then ends as if it wrote to that reader. */
struct pollfd stream_poll(stream *s);
void stream_read(stream *s);

/* Reads no more than is in the pipe now: a process that outlives the ranks may write for ever. */
void stream_end(stream *s);

#endif
