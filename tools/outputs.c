#include "outputs.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

/* Bytes that a stream has for its line, at first and at most: longer lines are passed on as several. */
#define LINE_FIRST 4096
#define LINE_MOST (16 << 20)

/* A message has a path at most. */
#define MESSAGE_MOST (PATH_MAX + 512)

typedef struct output {
    char *text; /* from begin to end it is kept */
    size_t begin, end, capacity;
    bool closed;
    int error;
} output;

static output outputs[2]; /* of STDOUT_FILENO and STDERR_FILENO */
static bool same;         /* both are one file: all goes through the first, as a line could else begin within another */

static output *output_of(int file)
{
    return &outputs[same ? 0 : file - STDOUT_FILENO];
}

/* ---- writing ---- */

static void interrupt(int number)
{
    (void)number;
}

void outputs_open(void)
{
    struct stat first, second;
    sigset_t alarm;
    same = fstat(STDOUT_FILENO, &first) == 0 && fstat(STDERR_FILENO, &second) == 0 && first.st_dev == second.st_dev &&
           first.st_ino == second.st_ino;
    sigaction(SIGALRM, &(struct sigaction){.sa_handler = interrupt}, NULL);
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    sigprocmask(SIG_UNBLOCK, &alarm, NULL);
}

/* A terminal may have room for less than is written, and wait for its reader with the rest. The file is not made
 * non-blocking, as other processes use it too. The signal is repeated, as the first may come before the write begins. */
static ssize_t write_what_fits(int file, const char *text, size_t bytes)
{
    const struct itimerval often = {.it_interval.tv_usec = 50000, .it_value.tv_usec = 50000}, never = {.it_value.tv_usec = 0};
    setitimer(ITIMER_REAL, &often, NULL);
    ssize_t done = write(file, text, bytes);
    int error = errno;
    setitimer(ITIMER_REAL, &never, NULL);
    errno = error;
    return done;
}

/* Whole lines, as far as a pipe takes them at once: they do not mix with those of other processes. */
void output_write(int number)
{
    output *o = &outputs[number];
    const char *text = o->text + o->begin;
    size_t kept = o->end - o->begin, bytes = kept < PIPE_BUF ? kept : PIPE_BUF;
    const char *last = memrchr(text, '\n', bytes);
    ssize_t done = write_what_fits(STDOUT_FILENO + number, text, last ? (size_t)(last - text) + 1 : bytes);
    if (done < 0 && errno != EINTR && errno != EAGAIN) {
        o->closed = errno == EPIPE;
        if (!o->closed && !o->error)
            o->error = errno;
        done = (ssize_t)kept;
    }
    o->begin += done > 0 ? (size_t)done : 0;
    if (o->begin == o->end)
        o->begin = o->end = 0;
}

struct pollfd output_poll(int number)
{
    return (struct pollfd){.fd = outputs[number].end > 0 ? STDOUT_FILENO + number : -1, .events = POLLOUT};
}

bool outputs_wait(void)
{
    return outputs[0].end > 0 || outputs[1].end > 0;
}

void outputs_give_up(void)
{
    for (int i = 0; i < 2; i++) {
        outputs[i].begin = outputs[i].end = 0;
        outputs[i].closed = true;
    }
}

void outputs_close(void)
{
    for (int i = 0; i < 2; i++)
        free(outputs[i].text);
}

int outputs_error(void)
{
    return outputs[0].error ? outputs[0].error : outputs[1].error;
}

/* Room for text that the caller writes; NULL where it is lost. */
static char *keep(output *o, size_t bytes)
{
    if (o->closed)
        return NULL;
    if (o->capacity - o->end < bytes) {
        size_t wanted = 2 * o->capacity > o->end + bytes ? 2 * o->capacity : o->end + bytes;
        char *larger = realloc(o->text, wanted);
        if (!larger) {
            o->error = o->error ? o->error : ENOMEM;
            return NULL;
        }
        o->text = larger;
        o->capacity = wanted;
    }
    o->end += bytes;
    return o->text + o->end - bytes;
}

void say(const char *format, ...)
{
    char text[MESSAGE_MOST];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    size_t bytes = length < (int)sizeof text ? (size_t)length : sizeof text - 1;
    char *kept = keep(output_of(STDERR_FILENO), bytes);
    if (kept)
        memcpy(kept, text, bytes);
}

/* ---- ranks' lines ---- */

bool stream_open(stream *s, int rank, int from, int to)
{
    *s = (stream){.rank = rank, .from = from, .to = to, .capacity = LINE_FIRST, .line = malloc(LINE_FIRST), .rest = SIZE_MAX};
    return s->line != NULL;
}

void stream_close(stream *s)
{
    if (s->from >= 0)
        close(s->from);
    free(s->line);
    *s = (stream){.from = -1};
}

struct pollfd stream_poll(stream *s)
{
    if (s->from >= 0 && output_of(s->to)->closed)
        stream_close(s);
    bool wait = s->from < 0 || output_of(s->to)->end > 0;
    return (struct pollfd){.fd = wait ? -1 : s->from, .events = POLLIN};
}

static void pass_on(const stream *s, const char *line, size_t bytes)
{
    char tag[16];
    size_t head = (size_t)snprintf(tag, sizeof tag, "[%d] ", s->rank);
    bool whole = line[bytes - 1] == '\n';
    char *kept = keep(output_of(s->to), head + bytes + !whole);
    if (!kept)
        return;
    memcpy(kept, tag, head);
    memcpy(kept + head, line, bytes);
    if (!whole)
        kept[head + bytes] = '\n';
}

/* Passes on what has come of a line that is too long, or that there is no memory for. */
static void make_room(stream *s)
{
    char *larger = s->capacity < LINE_MOST ? realloc(s->line, 2 * s->capacity) : NULL;
    if (larger) {
        s->line = larger;
        s->capacity *= 2;
    } else {
        pass_on(s, s->line, s->used);
        s->used = 0;
    }
}

/* Passes on a last line without its end. */
static void end_stream(stream *s)
{
    if (s->used > 0)
        pass_on(s, s->line, s->used);
    stream_close(s);
}

void stream_read(stream *s)
{
    if (s->used == s->capacity)
        make_room(s);
    size_t room = s->capacity - s->used;
    ssize_t got = read(s->from, s->line + s->used, room < s->rest ? room : s->rest);
    if (got < 0 && errno == EINTR)
        return;
    if (got > 0 && s->rest != SIZE_MAX)
        s->rest -= (size_t)got;
    const char *line = s->line, *fresh = s->line + s->used, *end = fresh + (got > 0 ? got : 0);
    for (const char *newline; (newline = memchr(fresh, '\n', (size_t)(end - fresh))) != NULL; line = fresh = newline + 1)
        pass_on(s, line, (size_t)(newline - line) + 1);
    s->used = (size_t)(end - line);
    memmove(s->line, line, s->used);
    if (got <= 0 || s->rest == 0)
        end_stream(s);
}

void stream_end(stream *s)
{
    int kept = 0;
    if (s->from < 0)
        return;
    if (ioctl(s->from, FIONREAD, &kept) == 0)
        s->rest = (size_t)kept;
    if (s->rest == 0)
        end_stream(s);
}
