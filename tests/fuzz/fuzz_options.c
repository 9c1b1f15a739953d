/* Lines as the names of a file's tensors and the values of shard-checkpoint's options that apply to names: --rename NAME=TEXT,
 * --drop and --keep PREFIX. An option that applies to a name is the longest one that does. */
#include "../../tools/checkpoint/settings.h"
#include "base/error.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST = 64 };

static void must(bool holds)
{
    if (!holds)
        abort();
}

/* Whether the value "NAME=TEXT" applies to the name, by its definition. */
static bool applies(const char *value, const char *name, size_t *bytes)
{
    *bytes = (size_t)(strrchr(value, '=') - value);
    if (strncmp(value, name, *bytes) != 0)
        return false;
    return name[*bytes] == '\0' || value[*bytes - 1] == '.';
}

static void check(texts *pairs, texts *prefixes, const char *name)
{
    size_t bytes, longest = 0, mine;
    int64_t found = settings_find(pairs, name, &bytes);
    bool has = false;
    for (int64_t i = 0; i < pairs->count; i++)
        if (applies(pairs->at[i], name, &mine) && mine > longest)
            longest = mine;
    must(found < 0 ? longest == 0 : bytes == longest && applies(pairs->at[found], name, &mine) && mine == bytes);
    for (int64_t i = 0; i < prefixes->count; i++)
        has |= strncmp(prefixes->at[i], name, strlen(prefixes->at[i])) == 0;
    must(settings_has_prefix(prefixes, name) == has);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *names[MOST], *pair_list[MOST], *prefix_list[MOST];
    int64_t count = 0;
    texts pairs = {.at = pair_list}, prefixes = {.at = prefix_list};
    char *copy = malloc(size + 1), *rest = copy;
    memcpy(copy, data, size);
    copy[size] = '\0';
    for (char *line; (line = strsep(&rest, "\n"));) {
        const char *equal = strrchr(line, '=');
        if (*line == '-' && line[1] && prefixes.count < MOST)
            prefix_list[prefixes.count++] = line + 1;
        else if (*line == '=' || !*line)
            continue;
        else if (equal && pairs.count < MOST)
            pair_list[pairs.count++] = line;
        else if (!equal && count < MOST)
            names[count++] = line;
    }
    for (int64_t i = 0; i < count; i++)
        check(&pairs, &prefixes, names[i]);
    settings_check_used(&pairs, "--rename");
    must(!strchr(shard_last_error(), '\033'));
    shard_clear_error();
    free(pairs.used);
    free(prefixes.used);
    free(copy);
    return 0;
}
