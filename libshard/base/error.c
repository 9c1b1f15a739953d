#include "base/error.h"

#include "base/kept_error.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static _Thread_local shard_status current_status = SHARD_OK;
static _Thread_local uint64_t current_serial;
static _Thread_local char current_text[SHARD_ERROR_TEXT_BYTES];

static void begin_error(shard_status status)
{
    static _Atomic uint64_t last_serial;
    current_status = status;
    current_serial = status == SHARD_OK ? 0 : atomic_fetch_add(&last_serial, 1) + 1;
}

const char *shard_status_name(shard_status status)
{
    static const char *const names[] = {
        [SHARD_OK] = "ok",
        [SHARD_ERROR_ARGUMENT] = "argument",
        [SHARD_ERROR_SHAPE] = "shape",
        [SHARD_ERROR_MEMORY] = "memory",
        [SHARD_ERROR_UNSUPPORTED] = "unsupported",
        [SHARD_ERROR_UNAVAILABLE] = "unavailable",
        [SHARD_ERROR_IO] = "io",
        [SHARD_ERROR_FORMAT] = "format",
        [SHARD_ERROR_MISMATCH] = "mismatch",
        [SHARD_ERROR_PEER] = "peer",
        [SHARD_ERROR_TIMEOUT] = "timeout",
        [SHARD_ERROR_DEVICE] = "device",
        [SHARD_ERROR_INTERNAL] = "internal",
    };
    if ((unsigned)status >= sizeof names / sizeof *names)
        return "unknown";
    return names[status];
}

shard_status shard_last_status(void)
{
    return current_status;
}

const char *shard_last_error(void)
{
    return current_text;
}

static _Atomic uint64_t cleared;

static void forget(void)
{
    begin_error(SHARD_OK);
    current_text[0] = '\0';
}

void shard_clear_error(void)
{
    atomic_fetch_add(&cleared, current_status != SHARD_OK);
    forget();
}

uint64_t shard_errors_cleared(void)
{
    return atomic_load(&cleared);
}

uint64_t shard_error_serial(void)
{
    return current_serial;
}

void shard_keep_error(shard_kept_error *kept)
{
    kept->status = current_status;
    kept->serial = current_serial;
    memcpy(kept->text, current_text, sizeof kept->text);
    forget();
}

void shard_put_back_error(const shard_kept_error *kept)
{
    current_status = kept->status;
    current_serial = kept->serial;
    memcpy(current_text, kept->text, sizeof current_text);
}

shard_status shard_error(shard_status status, const char *format, ...)
{
    if (current_status != SHARD_OK || status == SHARD_OK)
        return status;
    begin_error(status);
    if (!format) {
        snprintf(current_text, sizeof current_text, "shard_error: format is NULL");
        return status;
    }
    va_list arguments;
    va_start(arguments, format);
    char text[SHARD_ERROR_TEXT_BYTES];
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    shard_printable(current_text, sizeof current_text, text);
    return status;
}

shard_status shard_null_argument(const char *function, const char *argument)
{
    if (current_status == SHARD_OK)
        shard_error(SHARD_ERROR_ARGUMENT, "%s: %s is NULL", function, argument);
    return current_status;
}

shard_status shard_replace_error(shard_status status, const char *text)
{
    char copy[SHARD_ERROR_TEXT_BYTES]; /* text may point into current_text */
    snprintf(copy, sizeof copy, "%s", text);
    begin_error(status);
    shard_printable(current_text, sizeof current_text, copy);
    return status;
}
