#include "margin_options.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AT(field) .offset = offsetof(margin_options, field)
#define SAMPLE_RATE(offset_of)                                                                                                   \
    {                                                                                                                            \
        COMMAND_NUMBER, "sample-rate",                                                                                           \
            "Partial FC: a step's softmax is over the labels of its batch and about this part of the other classes; validation " \
            "is over all",                                                                                                       \
            "R", .offset = (offset_of), .least = 1e-9, .most = 1                                                                 \
    }

const command_option margin_rows[] = {
    {COMMAND_TEXT, "margin",
     "logits are cosines times --margin-scale, and in training alone the label's has a margin: cosine (of 0), arcface:M, "
     "cosface:M, sphereface:M, combined:M1,M2,M3 or adaface:M,H, which follows the norms of the features. There is no bias, as "
     "with a --sample-rate below 1. none: logits are those of a linear layer",
     "KIND", AT(text)},
    {COMMAND_NUMBER, "margin-scale", "of --margin's cosines; --margin none has none", "X", AT(scale), .least = 1e-3, .most = 1e6},
    SAMPLE_RATE(offsetof(margin_options, sample_rate)),
    {COMMAND_FLAG, "sample-correction",
     "add -log(R) of --sample-rate to the logits of classes that are no labels, so that the loss is about that over all classes",
     AT(sample_correction)},
    {0},
};

const command_option sample_rate_rows[] = {SAMPLE_RATE(0), {0}};

#define MARGIN_NUMBERS 3

enum { AT_M1, AT_M2, AT_M3, AT_M, AT_H, MARGIN_PLACES };

typedef struct margin_kind {
    const char *name;
    int count; /* of numbers */
    int place[MARGIN_NUMBERS];
} margin_kind;

static const margin_kind margin_kinds[] = {
    {"none", 0, {0}},
    {"cosine", 0, {0}},
    {"arcface", 1, {AT_M2}},
    {"cosface", 1, {AT_M3}},
    {"sphereface", 1, {AT_M1}},
    {"combined", 3, {AT_M1, AT_M2, AT_M3}},
    {"adaface", 2, {AT_M, AT_H}},
};

static const margin_kind *find_kind(const char *text, size_t length)
{
    for (size_t i = 0; i < sizeof margin_kinds / sizeof *margin_kinds; i++)
        if (strlen(margin_kinds[i].name) == length && strncmp(margin_kinds[i].name, text, length) == 0)
            return &margin_kinds[i];
    return NULL;
}

/* Reads "0.5" or "1,0.3,0.2" up to the end of the text; the count, or -1. */
static int read_numbers(const char *text, double *number)
{
    int count = 0;
    for (char *end; count < MARGIN_NUMBERS; text = end + 1) {
        number[count] = strtod(text, &end);
        if (end == text || !isfinite(number[count]) || number[count] < 0)
            return -1;
        count++;
        if (*end == '\0')
            return count;
        if (*end != ',')
            return -1;
    }
    return -1;
}

shard_status margin_options_read(margin_options *parsed)
{
    const char *text = parsed->text, *colon = strchr(text, ':');
    double number[MARGIN_NUMBERS], at[MARGIN_PLACES] = {[AT_M1] = 1};
    const margin_kind *kind = find_kind(text, colon ? (size_t)(colon - text) : strlen(text));
    int count = colon ? read_numbers(colon + 1, number) : 0;
    if (!kind || count != kind->count)
        return shard_error(SHARD_ERROR_ARGUMENT,
                           "--margin: \"%s\" is none of none, cosine, arcface:M, cosface:M, sphereface:M, combined:M1,M2,M3 and "
                           "adaface:M,H, with numbers of at least 0, as arcface:0.5",
                           text);
    for (int i = 0; i < count; i++)
        at[kind->place[i]] = number[i];
    parsed->cosines = strcmp(kind->name, "none") != 0;
    parsed->adaptive = strcmp(kind->name, "adaface") == 0;
    if (parsed->sample_correction && (parsed->cosines || parsed->sample_rate >= 1))
        return shard_error(SHARD_ERROR_ARGUMENT, "--sample-correction is for a --sample-rate below 1 and --margin none");
    parsed->m1 = at[AT_M1];
    parsed->m2 = at[AT_M2];
    parsed->m3 = at[AT_M3];
    parsed->m = at[AT_M];
    parsed->h = at[AT_H];
    return SHARD_OK;
}

shard_status margin_options_check_stash(const margin_options *parsed, const head_options *head)
{
    char margin[128];
    snprintf(margin, sizeof margin, "--margin %s", parsed->text);
    return head_options_check_stash(head, parsed->cosines ? margin : parsed->sample_rate < 1 ? "--sample-rate" : NULL);
}

#define NUMBER(value) command_write_number((char[32]){0}, 32, value)

shard_status margin_options_describe(const margin_options *wanted, training_checkpoint *of)
{
    char margin[TRAINING_SETTING_BYTES] = "none";
    if (wanted->cosines && wanted->adaptive)
        snprintf(margin, sizeof margin, "adaface:%s,%s", NUMBER(wanted->m), NUMBER(wanted->h));
    else if (wanted->cosines)
        snprintf(margin, sizeof margin, "combined:%s,%s,%s", NUMBER(wanted->m1), NUMBER(wanted->m2), NUMBER(wanted->m3));
    training_checkpoint_set(of, "margin", "--margin", TRAINING_ALWAYS, margin);
    training_checkpoint_set_missing(of, "none"); /* in files of trainers without such an option */
    training_checkpoint_set(of, "margin_scale", "--margin-scale", TRAINING_ALWAYS,
                            wanted->cosines ? NUMBER(wanted->scale) : "none");
    training_checkpoint_set_missing(of, "none");
    training_checkpoint_set_number(of, "sample_rate", "--sample-rate", TRAINING_ALWAYS, wanted->sample_rate);
    training_checkpoint_set_missing(of, "1");
    shard_status status = training_checkpoint_set(of, "sample_correction", "--sample-correction", TRAINING_GOES_ON,
                                                  wanted->sample_correction ? "yes" : "no");
    training_checkpoint_set_missing(of, "no");
    return status;
}
