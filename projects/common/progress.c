#include "progress.h"

#include <shard/distributed.h>

#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define BAR_CELLS 16
#define DRAW_SECONDS 0.1
#define LINE_BYTES 512

double progress_clock(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* mpirun may give ranks a terminal of its own, wherever it writes their output. */
progress progress_start(int64_t every)
{
    shard_group *world = shard_world();
    return (progress){
        .shown = shard_group_rank(world) == 0,
        .terminal = isatty(STDOUT_FILENO) && strcmp(shard_group_transport(world), "mpi") != 0,
        .every = every,
    };
}

static int terminal_width(void)
{
    struct winsize size;
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

/* One line, cut to the terminal's width so that it can be drawn over. */
static void draw_bar(progress *shown, const char *title, int64_t done, int64_t steps, const char *text)
{
    char line[LINE_BYTES], bar[BAR_CELLS + 1];
    int64_t filled = steps > 0 ? done * BAR_CELLS / steps : BAR_CELLS;
    for (int i = 0; i < BAR_CELLS; i++)
        bar[i] = i < filled ? '#' : '.';
    bar[BAR_CELLS] = '\0';
    snprintf(line, sizeof line, "%s [%s] %" PRId64 "/%" PRId64 "  %s", title, bar, done, steps, text);
    printf("\r%.*s\033[K", terminal_width() - 1, line);
    fflush(stdout);
    shown->open = true;
}

void progress_step(progress *shown, const char *title, int64_t done, int64_t steps, const char *text)
{
    if (!shown->shown)
        return;
    double now = progress_clock();
    bool last = done == steps;
    if (shown->terminal) {
        if (last || now - shown->drawn >= DRAW_SECONDS) {
            draw_bar(shown, title, done, steps, text);
            shown->drawn = now;
        }
        if (last) {
            putchar('\n');
            shown->open = false;
        }
    } else if (last || done % shown->every == 0 || done == 1) {
        printf("%s [%" PRId64 "/%" PRId64 "]  %s\n", title, done, steps, text);
        fflush(stdout);
    }
}

void progress_say(progress *shown, const char *format, ...)
{
    if (!shown->shown)
        return;
    if (shown->open)
        putchar('\n');
    shown->open = false;
    char text[LINE_BYTES + PATH_MAX], line[LINE_BYTES + 4 * PATH_MAX];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    puts(shard_printable(line, sizeof line, text)); /* names of files may have control characters */
    fflush(stdout);
}
