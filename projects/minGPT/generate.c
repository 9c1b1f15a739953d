/* Continues a text, a token of each sample at a time. Every rank draws the same tokens. */
#include "trainer.h"

#include "interrupt.h"
#include "random.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The tokens of all samples, and the cache of the keys and values of those that the network has seen. */
typedef struct continuation {
    trainer *run;
    int64_t samples, length, room; /* tokens of each sample */
    int64_t *token;                /* [samples, room] */
    gpt_cache cache;
    shard_tensor *unknown; /* [1, vocab_size]: -infinity for the rows of the vocabulary beyond the tokens; NULL: there are none */
} continuation;

/* The features of each sample's last token, [samples, n_embd]. Keys and values of the cache depend on the positions, which are
 * counted from the first token. In a text longer than a block they are counted from the first of the last block_size tokens, and
 * change with each token: these tokens then go through the network without a cache. */
static shard_tensor *features_of_last(continuation *of)
{
    int64_t size = of->run->config.block_size, begin = of->cache.length;
    if (of->length > size) {
        gpt_cache_clear(&of->cache);
        begin = of->length - size;
    }
    int64_t count = of->length - begin, *token = calloc((size_t)(of->samples * count) + 1, sizeof *token);
    if (!token) {
        shard_error(SHARD_ERROR_MEMORY, "no memory for %" PRId64 " tokens", of->samples * count);
        return NULL;
    }
    for (int64_t i = 0; i < of->samples; i++)
        memcpy(token + i * count, of->token + i * of->room + begin, (size_t)count * sizeof *token);
    shard_tensor *x = shard_from_host(token, SHARD_SHAPE(of->samples, count), .dtype = SHARD_INT64);
    free(token);
    x = gpt_forward(of->run->base.model, x, of->length > size ? NULL : &of->cache, NULL);
    return shard_reshape(shard_narrow(x, 1, count - 1, 1), SHARD_SHAPE(of->samples, of->run->config.n_embd));
}

/* Draws a number below `count` with a probability in proportion to exp(logit / temperature). uniform: random, in [0, 1). */
static int64_t draw(const float *logit, int64_t count, double temperature, double uniform)
{
    double most = -INFINITY, sum = 0, below = 0;
    for (int64_t i = 0; i < count; i++)
        most = fmax(most, logit[i]);
    for (int64_t i = 0; i < count; i++)
        sum += exp((logit[i] - most) / temperature);
    for (int64_t i = 0; i < count; i++) {
        below += exp((logit[i] - most) / temperature);
        if (uniform * sum < below)
            return i;
    }
    return count - 1;
}

/* Draws the next token of each sample. logits: [samples, columns], of which the first `count` count; tokens: the token of each
 * logit, NULL: logit i is token i's. */
static shard_status draw_each(continuation *of, shard_tensor *logits, shard_tensor *tokens, int64_t count)
{
    const options *wanted = of->run->options;
    int64_t columns = logits ? shard_tensor_size(logits, 1) : 0, all = of->samples * columns;
    float *logit = calloc((size_t)all + 1, sizeof *logit);
    int64_t *token = calloc((size_t)all + 1, sizeof *token);
    if (!logit || !token)
        shard_error(SHARD_ERROR_MEMORY, "no memory for %" PRId64 " logits", all);
    else
        shard_copy_to_host(logits, logit, (size_t)all * sizeof *logit);
    if (logit && token && tokens)
        shard_copy_to_host(tokens, token, (size_t)all * sizeof *token);
    for (int64_t i = 0; i < of->samples && shard_last_status() == SHARD_OK; i++) {
        random_stream stream = random_start((uint64_t)wanted->training.seed, (uint64_t)i, (uint64_t)of->length);
        int64_t drawn = draw(logit + i * columns, count, wanted->temperature, random_uniform(&stream));
        of->token[i * of->room + of->length] = tokens ? token[i * columns + drawn] : drawn;
    }
    free(logit);
    free(token);
    return shard_last_status();
}

static shard_status take_most_probable(continuation *of, shard_tensor *logits)
{
    shard_tensor *most = shard_argmax(logits, -1, false);
    for (int64_t i = 0; i < of->samples && most; i++) {
        int64_t token = (int64_t)shard_item(shard_narrow(most, 0, i, 1));
        of->token[i * of->room + of->length] = token;
    }
    return shard_last_status();
}

/* A vocabulary may have more rows than tokens: a multiple of 64, say, or of a number of ranks. No token is drawn of these. */
static shard_status find_unknown(continuation *of)
{
    const gpt_config *config = &of->run->config;
    const options *wanted = of->run->options;
    int64_t known = tokenizer_size(of->run->tokenizer);
    shard_group *group = wanted->parallel.enable_model_parallel ? shard_mesh_model_group(of->run->base.mesh) : NULL;
    if (known == config->vocab_size)
        return SHARD_OK;
    shard_range rows = shard_split_range(config->vocab_size, shard_group_size(group), shard_group_rank(group));
    float *added = calloc((size_t)rows.size + 1, sizeof *added);
    if (!added)
        return shard_error(SHARD_ERROR_MEMORY, "no memory for %" PRId64 " numbers", rows.size);
    for (int64_t i = 0; i < rows.size; i++)
        added[i] = rows.start + i < known ? 0 : -INFINITY;
    SHARD_SCOPE
    {
        shard_tensor *made = shard_from_host(added, SHARD_SHAPE(1, rows.size));
        of->unknown = shard_keep(group ? shard_as_split(made, 1, group, rows.start, config->vocab_size) : made);
    }
    free(added);
    return shard_last_status();
}

static shard_status add_token(continuation *of)
{
    const options *wanted = of->run->options;
    int64_t known = tokenizer_size(of->run->tokenizer);
    SHARD_SCOPE
    {
        shard_tensor *logits = NULL, *tokens = NULL;
        SHARD_AUTOCAST((shard_dtype)wanted->training.amp)
        {
            logits = gpt_logits(of->run->base.model, features_of_last(of));
        }
        logits = shard_cast(logits, SHARD_FLOAT32);
        if (of->unknown)
            logits = shard_add(logits, of->unknown);
        if (!wanted->do_sample) {
            take_most_probable(of, logits);
        } else if (wanted->top_k && wanted->top_k < known) {
            logits = shard_top_k(logits, wanted->top_k, &tokens);
            draw_each(of, logits, tokens, wanted->top_k);
        } else { /* in the tokens' order, whether --top-k is all of them or not given */
            draw_each(of, shard_gather_from_group(logits, -1, shard_mesh_model_group(of->run->base.mesh)), NULL, known);
        }
    }
    for (int64_t i = 0; i < of->samples && shard_last_status() == SHARD_OK; i++)
        if (of->token[i * of->room + of->length] >= known)
            shard_error(SHARD_ERROR_FORMAT, "the model's token %" PRId64 " is not in vocab.json",
                        of->token[i * of->room + of->length]);
    of->length++;
    return shard_last_status();
}

/* Standard output may be a file, of which the device is full. */
static shard_status print_samples(const continuation *of)
{
    const char *line = "--------------------------------------------------------------------------------";
    if (shard_group_rank(shard_world()) != 0)
        return SHARD_OK;
    for (int64_t i = 0; i < of->samples; i++) {
        if (of->samples > 1)
            printf("%s\n", line);
        for (int64_t k = 0; k < of->length; k++) {
            int64_t bytes;
            const char *text = tokenizer_text(of->run->tokenizer, of->token[i * of->room + k], &bytes);
            fwrite(text, 1, (size_t)bytes, stdout);
        }
        printf("\n");
    }
    if (fflush(stdout) != 0 || ferror(stdout))
        return shard_error(SHARD_ERROR_IO, "standard output: %s", strerror(errno));
    return SHARD_OK;
}

static shard_status begin(continuation *of, trainer *run)
{
    const options *wanted = run->options;
    const char *prompt = wanted->prompt ? wanted->prompt : "\n";
    int64_t count;
    int32_t *token = tokenizer_encode(run->tokenizer, prompt, (int64_t)strlen(prompt), "--prompt", &count);
    *of = (continuation){.run = run, .samples = wanted->num_samples, .length = count, .room = count + wanted->max_new_tokens};
    if (token && count == 0)
        shard_error(SHARD_ERROR_ARGUMENT, "--prompt needs a character");
    else if (token && !(of->token = calloc((size_t)(of->samples * of->room) + 1, sizeof *of->token)))
        shard_error(SHARD_ERROR_MEMORY, "no memory for %" PRId64 " tokens", of->samples * of->room);
    for (int64_t i = 0; i < of->samples && of->token; i++)
        for (int64_t k = 0; k < count; k++)
            of->token[i * of->room + k] = token[k];
    free(token);
    return shard_last_status();
}

shard_status generate(trainer *run)
{
    continuation of;
    double signals = 0; /* on how many ranks */
    shard_status status = begin(&of, run);
    if (status == SHARD_OK)
        status = find_unknown(&of);
    shard_module_set_training(run->base.model, false);
    SHARD_NO_GRAD
    {
        while (status == SHARD_OK && signals == 0 && of.length < of.room) {
            status = add_token(&of);
            signals = interrupt_signal() != 0;
            if (status == SHARD_OK)
                status = training_sum(&signals, 1);
        }
    }
    if (status == SHARD_OK)
        status = print_samples(&of);
    gpt_cache_clear(&of.cache);
    shard_release(of.unknown);
    free(of.token);
    return status;
}
