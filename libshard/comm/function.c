#include "comm/function.h"

#include "base/hash.h"
#include "base/plain_text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local shard_function current;

const shard_function *shard_current_function(void)
{
    return &current;
}

shard_function_mark shard_enter_function(const char *name)
{
    shard_function_mark mark = {.before = current.hash, .outermost = !current.name, .arguments = strlen(current.arguments)};
    if (mark.outermost) {
        current.name = name;
        current.hash = shard_hash_text(SHARD_HASH_START, name);
    }
    return mark;
}

void shard_leave_function(const shard_function_mark *mark)
{
    if (mark->outermost)
        current.name = NULL;
    current.hash = mark->before;
    current.arguments[mark->arguments] = '\0';
}

const char *shard_function_hint(void)
{
    static const struct {
        const char *name, *hint;
    } hints[] = {{"shard_save", "all ranks call it unless .local is set"},
                 {"shard_save_async", "all ranks call it unless .local is set"},
                 {"shard_save_module", "all ranks call it"},
                 {"shard_load", "all ranks call it unless .local is set"},
                 {"shard_load_module", "all ranks call it"}};
    for (size_t i = 0; current.name && i < sizeof hints / sizeof *hints; i++)
        if (strcmp(current.name, hints[i].name) == 0)
            return hints[i].hint;
    return NULL;
}

void shard_require_identical(const char *format, ...)
{
    char text[SHARD_FUNCTION_ARGUMENTS - 8];
    if (!current.name)
        return;
    va_list arguments;
    va_start(arguments, format);
    shard_plain_vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    current.hash = shard_hash_text(current.hash, text);
    size_t used = strlen(current.arguments);
    if (used + strlen(text) + sizeof "; " <= sizeof current.arguments)
        sprintf(current.arguments + used, "%s%s", used ? "; " : "", text);
}

void shard_require_identical_hash(uint64_t hash)
{
    current.hash = shard_hash_word(current.hash, hash);
}

void shard_require_identical_path(const char *name, const char *path)
{
    shard_require_identical_hash(shard_hash_text(SHARD_HASH_START, path));
    shard_require_identical("%s %s", name, path);
}
