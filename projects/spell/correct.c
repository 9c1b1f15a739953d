/* --correct: corrections of the words of standard input. */
#include "trainer.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Capitals of French and German beyond Latin-1, and their small letters, which have no more bytes. */
static const char *const capitals[][2] = {{"Œ", "œ"}, {"Ÿ", "ÿ"}, {"ẞ", "ß"}};

/* Puts the small letter in the place of one of the capitals. */
static void make_letter_lower(char *text)
{
    for (size_t i = 0; i < sizeof capitals / sizeof *capitals; i++) {
        size_t capital = strlen(capitals[i][0]), small = strlen(capitals[i][1]);
        if (strncmp(text, capitals[i][0], capital) != 0)
            continue;
        memcpy(text, capitals[i][1], small);
        memmove(text + small, text + capital, strlen(text + capital) + 1);
        return;
    }
}

/* A to Z, the capitals of Latin-1 in UTF-8, and those of the table become small: words.txt is in lower case. */
static void make_lower(char *word)
{
    unsigned char *c = (unsigned char *)word;
    for (; *c; c++) {
        if (*c >= 'A' && *c <= 'Z')
            *c = (unsigned char)(*c + 32);
        else if (c[0] == 0xc3 && c[1] >= 0x80 && c[1] <= 0x9e && c[1] != 0x97)
            c[1] = (unsigned char)(c[1] + 32);
        else
            make_letter_lower((char *)c);
    }
}

/* The largest logits, their classes, and the probability of the first: exp(logit - lse). */
static shard_status find(trainer *run, const char *word, int64_t top, float *logit, int64_t *class, double *probability)
{
    const options *wanted = run->options;
    shard_module *head = shard_module_child(run->base.model, "fc");
    SHARD_NO_GRAD
    SHARD_SCOPE
    {
        shard_tensor *weight = shard_module_tensor(head, "weight"), *bias = shard_module_tensor(head, "bias"), *classes = NULL;
        shard_tensor *x =
            shard_cast(trainer_features(run, &word, 1, wanted->scale), head_dtype(&wanted->head, &wanted->training));
        shard_tensor *logits = shard_linear_top_k(x, weight, bias, top, &classes);
        if (logits && shard_copy_to_host(logits, logit, (size_t)top * sizeof *logit) == SHARD_OK &&
            shard_copy_to_host(classes, class, (size_t)top * sizeof *class) == SHARD_OK) {
            shard_tensor *first = shard_from_host(class, SHARD_SHAPE(1), .dtype = SHARD_INT64);
            *probability = exp(-shard_item(shard_linear_cross_entropy(x, weight, bias, first)));
        }
    }
    return shard_last_status();
}

/* A line: the word, and after a tab each correction with its probability. */
static shard_status correct_one(trainer *run, char *word, int64_t top, float *logit, int64_t *class, FILE *out)
{
    double first = 0;
    char shown[4 * NOISE_MOST_BYTES + 1];
    make_lower(word);
    shard_status status = find(run, word, top, logit, class, &first);
    if (status != SHARD_OK)
        return status;
    fputs(shard_printable(shown, sizeof shown, word), out);
    for (int64_t i = 0; i < top; i++)
        fprintf(out, "\t%s %.4f", words_at(run->dictionary, class[i]), first * exp((double)logit[i] - (double)logit[0]));
    fputc('\n', out);
    return fflush(out) == 0 ? SHARD_OK : shard_error(SHARD_ERROR_IO, "--correct: standard output cannot be written");
}

/* Reads up to white space; *too_long if the word does not fit, whose rest is skipped. False at the end. */
static bool read_word(FILE *in, char *word, size_t room, bool *too_long)
{
    size_t length = 0;
    int c = getc_unlocked(in);
    while (c == ' ' || c == '\n' || c == '\t' || c == '\r')
        c = getc_unlocked(in);
    *too_long = false;
    for (; c != EOF && c != ' ' && c != '\n' && c != '\t' && c != '\r'; c = getc_unlocked(in)) {
        *too_long |= length == room - 1 || c == '\0';
        if (!*too_long)
            word[length++] = (char)c;
    }
    word[length] = '\0';
    return length > 0 || *too_long;
}

shard_status correct(trainer *run, FILE *in, FILE *out)
{
    int64_t done = 0, top = run->options->top_k < run->dictionary->count ? run->options->top_k : run->dictionary->count;
    char word[NOISE_MOST_BYTES + 1];
    bool too_long;
    double seconds = 0;
    float *logit = calloc((size_t)top, sizeof *logit);
    int64_t *class = calloc((size_t)top, sizeof *class);
    shard_status status =
        logit && class ? SHARD_OK : shard_error(SHARD_ERROR_MEMORY, "no memory for %" PRId64 " corrections", top);
    while (status == SHARD_OK && read_word(in, word, sizeof word, &too_long)) {
        if (too_long) {
            fprintf(stderr, "spell: a word of more than %d bytes, or with a byte of 0, is left out\n", NOISE_MOST_BYTES);
            continue;
        }
        double begun = progress_clock();
        status = correct_one(run, word, top, logit, class, out);
        seconds += progress_clock() - begun;
        done++;
    }
    free(logit);
    free(class);
    if (status == SHARD_OK && ferror(in))
        return shard_error(SHARD_ERROR_IO, "--correct: standard input cannot be read");
    if (status == SHARD_OK && done > 0)
        fprintf(stderr, "%" PRId64 " words, %.2f ms a word\n", done, 1000 * seconds / (double)done);
    return status;
}
