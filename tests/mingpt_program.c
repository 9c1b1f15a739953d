/* mingpt_program.c: parts of projects/minGPT for check_mingpt.py. Modes:
 *     train FILE SIZE DIR          byte pairs of a text, SIZE tokens, to DIR; SIZE 0: characters
 *     encode DIR FILE              the tokens of a text, which must decode to it
 *     words FILE                   the sizes of its words, in bytes
 *     logits DIR OUT STEP ID...    of the tokens, [tokens, vocabulary], with a cache of STEP tokens at a time; 0: without a cache
 *     copy DIR OUT                 DIR's model, loaded and saved
 */
#include "gpt.h"
#include "text.h"
#include "words.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int train(const char *file, int64_t size, const char *folder)
{
    int64_t bytes;
    char *text = text_read(file, 0, &bytes);
    tokenizer *made = !text ? NULL : size ? tokenizer_of_pairs(text, bytes, size) : tokenizer_of_characters(text, bytes);
    if (made)
        tokenizer_save(made, folder);
    tokenizer_close(made);
    free(text);
    return shard_last_status() != SHARD_OK;
}

static int encode(const char *folder, const char *file)
{
    int64_t bytes, count = 0, at = 0, size;
    bool same = true;
    char *text = text_read(file, 0, &bytes);
    tokenizer *made = tokenizer_open(folder);
    int32_t *tokens = text && made ? tokenizer_encode(made, text, bytes, file, &count) : NULL;
    for (int64_t i = 0; i < count && tokens; i++, at += size) {
        const char *piece = tokenizer_text(made, tokens[i], &size);
        same = same && at + size <= bytes && memcmp(text + at, piece, (size_t)size) == 0;
        printf("%d\n", tokens[i]);
    }
    if (tokens && !(same && at == bytes))
        shard_error(SHARD_ERROR_INTERNAL, "%s: its tokens do not decode to the text", file);
    free(tokens);
    tokenizer_close(made);
    free(text);
    return shard_last_status() != SHARD_OK;
}

static int split(const char *file)
{
    int64_t bytes;
    char *text = text_read(file, 0, &bytes);
    for (const char *at = text, *after; text && at < text + bytes; at = after) {
        after = words_end(at, text + bytes);
        printf("%d\n", (int)(after - at));
    }
    free(text);
    return shard_last_status() != SHARD_OK;
}

static shard_module *open_model(const char *folder)
{
    char path[PATH_MAX];
    gpt_config config;
    snprintf(path, sizeof path, "%s/config.json", folder);
    shard_module *gpt = config_read(&config, path) == SHARD_OK ? gpt_make(&config, shard_world()) : NULL;
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    if (gpt)
        gpt_load(gpt, path);
    return gpt;
}

static int logits(const char *folder, const char *out, int64_t step, int64_t count, char **number)
{
    shard_module *gpt = open_model(folder);
    gpt_cache cache = {0};
    int64_t *token = calloc((size_t)count + 1, sizeof *token);
    shard_tensors *list = shard_tensors_create();
    for (int64_t i = 0; i < count; i++)
        token[i] = strtoll(number[i], NULL, 10);
    SHARD_NO_GRAD
    SHARD_SCOPE
    {
        shard_tensor *all = NULL;
        for (int64_t at = 0, size; gpt && at < count; at += size) {
            size = step == 0 ? count : count - at < step ? count - at : step;
            shard_tensor *x = shard_from_host(token + at, SHARD_SHAPE(1, size), .dtype = SHARD_INT64);
            x = gpt_logits(gpt, gpt_forward(gpt, x, step ? &cache : NULL, NULL));
            all = all ? shard_concatenate((shard_tensor *[]){all, x}, 2, 1) : x;
        }
        shard_tensors_add(list, "logits", shard_gather_from_group(all, -1, shard_world()));
        shard_save(list, out, NULL);
    }
    shard_tensors_destroy(list);
    gpt_cache_clear(&cache);
    shard_module_destroy(gpt);
    free(token);
    return 0;
}

static int copy(const char *folder, const char *out)
{
    shard_module *gpt = open_model(folder);
    shard_tensors *list = gpt ? gpt_export(gpt) : NULL;
    if (list)
        shard_save(list, out, NULL);
    shard_tensors_destroy(list);
    shard_module_destroy(gpt);
    return 0;
}

int main(int argc, char **argv)
{
    int code = 1;
    if (shard_init(&argc, &argv) == SHARD_OK && argc > 2) {
        const char *mode = argv[1];
        if (strcmp(mode, "train") == 0 && argc == 5)
            code = train(argv[2], strtoll(argv[3], NULL, 10), argv[4]);
        else if (strcmp(mode, "encode") == 0 && argc == 4)
            code = encode(argv[2], argv[3]);
        else if (strcmp(mode, "words") == 0)
            code = split(argv[2]);
        else if (strcmp(mode, "logits") == 0 && argc > 5)
            code = logits(argv[2], argv[3], strtoll(argv[4], NULL, 10), argc - 5, argv + 5);
        else if (strcmp(mode, "copy") == 0 && argc == 4)
            code = copy(argv[2], argv[3]);
    }
    int ended = shard_finalize();
    return ended ? ended : code;
}
