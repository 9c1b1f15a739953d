#include "base/log.h"

#include "base/env.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static atomic_int log_rank = -1; /* set by the thread of shard_init, while others may log */
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static shard_log_function *log_function;
static void *log_context;

void shard_set_log_function(shard_log_function *function, void *context)
{
    pthread_mutex_lock(&log_lock);
    log_function = function;
    log_context = context;
    pthread_mutex_unlock(&log_lock);
}

void shard_log_set_rank(int rank)
{
    atomic_store(&log_rank, rank);
}

int shard_log_rank(void)
{
    return atomic_load(&log_rank);
}

static const char *const level_names[] = {"error", "warn", "info", "debug"};

static shard_log_level enabled_level(void)
{
    const char *wanted = shard_env_string("SHARD_LOG", "warn");
    for (int level = SHARD_LOG_ERROR; level <= SHARD_LOG_DEBUG; level++)
        if (strcmp(wanted, level_names[level]) == 0)
            return (shard_log_level)level;
    static atomic_flag warned = ATOMIC_FLAG_INIT;
    if (!atomic_flag_test_and_set(&warned))
        fprintf(stderr, "shard warn: SHARD_LOG is \"%.40s\"; the levels are error, warn, info and debug: warn is taken\n",
                wanted);
    return SHARD_LOG_WARN;
}

void shard_log_message(shard_log_level level, const char *format, ...)
{
    if (level > enabled_level())
        return;
    /* One write for each line, so that lines of several ranks do not mix. */
    char line[1024], text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    int rank = shard_log_rank();
    int used = rank < 0 ? snprintf(line, sizeof line, "shard %s: ", level_names[level])
                        : snprintf(line, sizeof line, "shard[%d] %s: ", rank, level_names[level]);
    shard_printable(line + used, sizeof line - (size_t)used, text);
    pthread_mutex_lock(&log_lock);
    if (log_function)
        log_function(level, rank, line + used, log_context);
    else
        fprintf(stderr, "%s\n", line);
    pthread_mutex_unlock(&log_lock);
}
