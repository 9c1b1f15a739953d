/* Any bytes as the folder of a GPT-2: config.json, a line "====", vocab.json and, after another such line, merges.txt. Each is
 * refused with an error of one line; or the network's sizes are in their ranges, and the tokenizer gives a text back, and both
 * written are read as the same. */
#include "config.h"
#include "text.h"
#include "utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds)
{
    if (!holds)
        abort();
}

static char folder[64] = "/dev/shm/shard-fuzz-XXXXXX", again[80];
static const char *const names[] = {"config.json", "vocab.json", "merges.txt"};

static const char *path_of(const char *in, const char *name)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", in, name);
    return path;
}

static void remove_all(void)
{
    for (int i = 0; i < 3; i++) {
        unlink(path_of(folder, names[i]));
        unlink(path_of(again, names[i]));
    }
    rmdir(again);
    rmdir(folder);
}

static void start(void)
{
    if (again[0])
        return;
    must(mkdtemp(folder) != NULL && atexit(remove_all) == 0);
    snprintf(again, sizeof again, "%s/again", folder);
    must(mkdir(again, 0700) == 0);
}

/* Writes the parts of the data as files; one that is not there is removed. */
static void write_files(const char *data, size_t size)
{
    static const char line[] = "\n====\n";
    const char *at = data, *end = data + size;
    for (int i = 0; i < 3; i++) {
        const char *path = path_of(folder, names[i]);
        const char *next = at ? memmem(at, (size_t)(end - at), line, sizeof line - 1) : NULL;
        size_t bytes = (size_t)((next ? next : end) - (at ? at : end));
        FILE *file = at ? fopen(path, "wb") : NULL;
        must(at ? file && fwrite(at, 1, bytes, file) == bytes && fclose(file) == 0
                : unlink(path) == 0 || access(path, F_OK) != 0);
        at = next ? next + sizeof line - 1 : NULL;
    }
}

static void check_config(void)
{
    gpt_config config, copy;
    bool read = config_read(&config, path_of(folder, "config.json")) == SHARD_OK;
    must(read == (shard_last_status() == SHARD_OK) && !strpbrk(shard_last_error(), "\n\033"));
    shard_clear_error();
    if (!read)
        return;
    must(config.vocab_size >= 1 && config.vocab_size <= INT32_MAX && config.block_size >= 1 && config.block_size <= INT32_MAX);
    must(config.n_layer >= 1 && config.n_layer <= GPT_MOST_LAYERS && config.n_head >= 1 && config.n_embd % config.n_head == 0);
    must(config.embd_pdrop >= 0 && config.embd_pdrop <= GPT_MOST_DROPOUT && config.layer_norm_epsilon <= 1);
    must(config_write(&config, path_of(again, "config.json"), -1) == SHARD_OK);
    must(config_read(&copy, path_of(again, "config.json")) == SHARD_OK && config_is_same_network(&config, &copy));
    must(copy.embd_pdrop == config.embd_pdrop && copy.resid_pdrop == config.resid_pdrop);
}

/* The tokens of a text give the text. */
static void check_text(const tokenizer *of, const char *text, int64_t bytes)
{
    int64_t count, at = 0, size;
    int32_t *tokens = tokenizer_encode(of, text, bytes, "fuzz", &count);
    must(tokens || !of->has_pairs); /* characters may be unknown */
    for (int64_t i = 0; i < count && tokens; i++, at += size) {
        must(tokens[i] >= 0 && tokens[i] < tokenizer_size(of));
        const char *piece = tokenizer_text(of, tokens[i], &size);
        must(at + size <= bytes && memcmp(text + at, piece, (size_t)size) == 0);
    }
    must(!tokens || at == bytes);
    free(tokens);
    shard_clear_error();
}

static bool is_text(const char *text, const char *end)
{
    int size = 1;
    while (text < end && *text && utf8_read(text, end, &size) >= 0)
        text += size;
    return text == end;
}

static void check_tokenizer(const char *data, size_t size)
{
    tokenizer *read = tokenizer_open(folder);
    must((read != NULL) == (shard_last_status() == SHARD_OK) && !strpbrk(shard_last_error(), "\n\033"));
    shard_clear_error();
    if (!read)
        return;
    must(tokenizer_size(read) > 0 && tokenizer_save(read, again) == SHARD_OK);
    tokenizer *copy = tokenizer_open(again);
    must(copy && copy->has_pairs == read->has_pairs && copy->end_of_text == read->end_of_text);
    must(tokenizer_hash(copy) == tokenizer_hash(read));
    if (is_text(data, data + size))
        check_text(read, data, (int64_t)size);
    tokenizer_close(copy);
    tokenizer_close(read);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    start();
    char *copy = malloc(size + 1);
    must(copy != NULL);
    memcpy(copy, data, size);
    copy[size] = '\0';
    write_files(copy, size);
    check_config();
    check_tokenizer(copy, size);
    free(copy);
    return 0;
}
