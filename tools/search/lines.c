#include "lines.h"

#include "base/error.h"
#include "comm/straggler.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LEAST_READ = 1 << 16 };

shard_status lines_open(lines *from, const char *path)
{
    *from = (lines){.path = path, .descriptor = path ? open(path, O_RDONLY | O_CLOEXEC) : STDIN_FILENO};
    return from->descriptor >= 0 ? SHARD_OK : shard_error(SHARD_ERROR_IO, "cannot open %s: %s", path, strerror(errno));
}

void lines_close(lines *from)
{
    if (from->path && from->descriptor >= 0)
        close(from->descriptor);
    free(from->buffer);
    *from = (lines){.descriptor = -1};
}

const char *lines_path(const lines *from)
{
    return from->path ? from->path : "standard input";
}

/* Has room for `bytes` in all from `begin` on, and for a read. */
static shard_status make_room(lines *from, size_t bytes)
{
    size_t there = from->end - from->begin, wanted = (bytes > there ? bytes : there) + LEAST_READ;
    if (from->begin > 0)
        memmove(from->buffer, from->buffer + from->begin, there);
    from->begin = 0;
    from->end = there;
    if (wanted <= from->capacity)
        return SHARD_OK;
    wanted += wanted / 2;
    char *grown = realloc(from->buffer, wanted);
    if (!grown)
        return shard_error(SHARD_ERROR_MEMORY, "no memory for %zu bytes of %s", wanted, lines_path(from));
    from->buffer = grown;
    from->capacity = wanted;
    return SHARD_OK;
}

/* The ranks that wait meanwhile do not wait for a computation. */
static int wait_for_input(int descriptor, int wait)
{
    struct pollfd input = {.fd = descriptor, .events = POLLIN};
    shard_straggler_enter();
    int ready = poll(&input, 1, wait);
    shard_straggler_leave();
    return ready;
}

/* Reads once. */
static shard_status read_more(lines *from, size_t bytes, int wait)
{
    SHARD_TRY(make_room(from, bytes));
    int ready = wait_for_input(from->descriptor, wait);
    ssize_t got = ready > 0 ? read(from->descriptor, from->buffer + from->end, from->capacity - from->end) : -1;
    bool nothing = ready == 0 || (got < 0 && (errno == EINTR || errno == EAGAIN)); /* EAGAIN: another process has read it */
    from->waiting = nothing && wait >= 0;
    if (nothing)
        return SHARD_OK;
    if (got < 0)
        return shard_error(SHARD_ERROR_IO, "cannot read %s: %s", lines_path(from), strerror(errno));
    from->end += (size_t)got;
    from->ended = got == 0;
    return SHARD_OK;
}

shard_status lines_fill(lines *from, size_t bytes, int wait, size_t *there)
{
    from->waiting = false;
    while (from->end - from->begin < bytes && !from->ended && !from->waiting)
        SHARD_TRY(read_more(from, bytes, wait));
    *there = from->end - from->begin;
    return SHARD_OK;
}

const char *lines_at(const lines *from)
{
    return from->buffer + from->begin;
}

void lines_take(lines *from, size_t bytes)
{
    from->begin += bytes;
}

shard_status lines_next(lines *from, size_t most, int wait, const char **text, size_t *bytes)
{
    *text = NULL;
    from->waiting = false;
    for (size_t searched = 0;;) {
        size_t there = from->end - from->begin;
        const char *end = there > searched ? memchr(lines_at(from) + searched, '\n', there - searched) : NULL;
        size_t length = end ? (size_t)(end - lines_at(from)) : there;
        if (length > most)
            return shard_error(SHARD_ERROR_FORMAT, "%s: line %" PRId64 " has more than %zu bytes", lines_path(from),
                               from->line + 1, most);
        if (end || (from->ended && there > 0)) {
            *text = lines_at(from);
            *bytes = length;
            lines_take(from, end ? length + 1 : length);
            from->line++;
            return SHARD_OK;
        }
        if (from->ended || from->waiting)
            return SHARD_OK;
        searched = there;
        SHARD_TRY(read_more(from, 0, wait));
    }
}
