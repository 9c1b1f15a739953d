#include "command_line.h"

#include "hash.h"
#include "identical.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* getopt's value of an option's first name is FIRST plus its number; of its second name ALSO, of a foreign one FOREIGN. */
enum { FIRST = 256, ALSO = 1000, FOREIGN = 2000 };

/* ---- tables of tables ---- */

static shard_status add_row(command_line *flat, command_option *rows, command_option row)
{
    if (flat->count == COMMAND_MOST_OPTIONS)
        return shard_error(SHARD_ERROR_INTERNAL, "a command line of more than %d options", COMMAND_MOST_OPTIONS);
    rows[flat->count++] = row;
    return SHARD_OK;
}

/* The line with the rows of ROWS in their place. */
static shard_status flatten(const command_line *line, command_option rows[COMMAND_MOST_OPTIONS], command_line *flat)
{
    shard_status status = SHARD_OK;
    *flat = *line;
    flat->options = rows;
    flat->count = 0;
    for (int i = 0; i < line->count && status == SHARD_OK; i++) {
        const command_option *own = &line->options[i];
        if (own->kind != COMMAND_ROWS)
            status = add_row(flat, rows, *own);
        for (const command_option *of = own->rows; of && of->name && status == SHARD_OK; of++) {
            command_option row = *of;
            row.offset += own->offset;
            row.word = own->name;
            status = add_row(flat, rows, row);
        }
    }
    return status;
}

/* ---- reading ---- */

static const command_choice *find_choice(const command_choice *choices, const char *name)
{
    while (choices->name && strcmp(choices->name, name) != 0)
        choices++;
    return choices->name ? choices : NULL;
}

const char *command_choice_name(const command_choice *choices, int value)
{
    while (choices->value != value)
        choices++;
    return choices->name;
}

static shard_status read_number(const command_option *option, const char *text, void *field)
{
    char *end;
    errno = 0;
    int64_t whole = option->kind == COMMAND_WHOLE ? strtoll(text, &end, 10) : 0;
    double number = option->kind == COMMAND_WHOLE ? (double)whole : strtod(text, &end);
    const char *what = option->kind == COMMAND_WHOLE ? "whole number" : "number";
    bool read = end != text && !*end && !errno && number >= option->least && number <= option->most;
    if (read && option->kind == COMMAND_WHOLE && option->most <= COMMAND_MOST_WHOLE)
        read = whole <= (int64_t)option->most; /* 2^53 + 1 is 2^53 as a double */
    bool bounded = option->most != INFINITY && (option->most != COMMAND_MOST_WHOLE || number > option->most);
    if (!read && !bounded)
        return shard_error(SHARD_ERROR_ARGUMENT, "--%s: \"%s\" is not a %s of at least %.10g", option->name, text, what,
                           option->least);
    if (!read)
        return shard_error(SHARD_ERROR_ARGUMENT, "--%s: \"%s\" is not a %s from %.10g to %.16g", option->name, text, what,
                           option->least, option->most);
    if (option->kind == COMMAND_WHOLE)
        *(int64_t *)field = whole;
    else
        *(double *)field = number;
    return SHARD_OK;
}

static bool is_folder(const char *path)
{
    struct stat status;
    return stat(path, &status) == 0 && S_ISDIR(status.st_mode);
}

/* Such an option takes the next word, so that one that was left without a value would take an option or the operand. A TEXT may
 * begin with "-" as any other character. */
static shard_status check_text(const command_option *option, const char *text)
{
    bool file = strncmp(option->argument, "FILE", 4) == 0;
    const char *word = strchr(option->argument, '|');
    if (strcmp(option->argument, "TEXT") == 0 || (word && strcmp(text, word + 1) == 0))
        return SHARD_OK;
    if (!text[0])
        return shard_error(SHARD_ERROR_ARGUMENT, "--%s needs a %s, and its value is empty", option->name, option->argument);
    if (text[0] == '-')
        return shard_error(SHARD_ERROR_ARGUMENT, "--%s needs a %s, and \"%s\" is an option (write ./%s for a file of that name)",
                           option->name, option->argument, text, text);
    if (file && is_folder(text))
        return shard_error(SHARD_ERROR_ARGUMENT, "--%s needs a FILE, and \"%s\" is a folder", option->name, text);
    return SHARD_OK;
}

static shard_status read_value(const command_option *option, const char *text, void *values)
{
    void *field = (char *)values + option->offset;
    switch (option->kind) {
    case COMMAND_FLAG:
    case COMMAND_HELP:
        *(bool *)field = true;
        return SHARD_OK;
    case COMMAND_TEXT:
        *(const char **)field = text;
        return check_text(option, text);
    case COMMAND_CHOICE: {
        const command_choice *chosen = find_choice(option->choices, text);
        if (!chosen)
            return shard_error(SHARD_ERROR_ARGUMENT, "--%s: there is no \"%s\"; see --help", option->name, text);
        *(int *)field = chosen->value;
        return SHARD_OK;
    }
    case COMMAND_WHOLE:
    case COMMAND_NUMBER:
        return read_number(option, text, field);
    case COMMAND_HEADING:
    case COMMAND_ROWS:
        break;
    }
    return SHARD_OK;
}

static bool has_argument(const command_option *option)
{
    return option->kind != COMMAND_FLAG && option->kind != COMMAND_HELP;
}

/* The table as getopt_long reads it. */
static void make_getopt(const command_line *line, struct option *names, char *letters)
{
    *letters++ = ':';
    for (int i = 0; i < line->count; i++) {
        const command_option *option = &line->options[i];
        if (option->kind == COMMAND_HEADING)
            continue;
        int argument = !has_argument(option) ? no_argument : option->alone ? optional_argument : required_argument;
        *names++ = (struct option){option->name, argument, NULL, i + FIRST};
        if (option->also)
            *names++ = (struct option){option->also, argument, NULL, i + ALSO};
        if (option->letter)
            *letters++ = option->letter;
        if (option->letter && argument == required_argument)
            *letters++ = ':';
    }
    for (int i = 0; i < line->foreign_count; i++)
        *names++ = (struct option){line->foreign[i].name, line->foreign[i].takes_value ? required_argument : no_argument, NULL,
                                   i + FOREIGN};
    *names = (struct option){0};
    *letters = '\0';
}

static const command_option *find_option(const command_line *line, int code)
{
    for (int i = 0; i < line->count; i++)
        if (code == i + FIRST || code == i + ALSO || (code == line->options[i].letter && code != 0))
            return &line->options[i];
    return NULL;
}

/* A separate word after an option with an optional value is the value if it can be; else it is the operand: a folder or file. */
static shard_status read_alone(const command_option *option, int argc, char **argv, void *values)
{
    const char *next = optind < argc && argv[optind][0] != '-' ? argv[optind] : NULL;
    if (next && find_choice(option->choices, next))
        return read_value(option, argv[optind++], values);
    if (next && access(next, F_OK) != 0)
        return shard_error(SHARD_ERROR_ARGUMENT, "--%s: there is no \"%s\", nor a folder or file of that name; see --help",
                           option->name, next);
    return read_value(option, option->alone, values);
}

static shard_status take_foreign(const command_line *line, const command_foreign *foreign, const char *value, void *values)
{
    command_notes *notes = (void *)((char *)values + line->notes_offset);
    bool known = false;
    for (int i = 0; i < notes->count; i++)
        known |= notes->of[i] == foreign;
    if (!known)
        notes->of[notes->count++] = foreign;
    return foreign->apply ? foreign->apply(values, value) : SHARD_OK;
}

void command_write_note(const command_foreign *foreign, char *text, size_t bytes)
{
    snprintf(text, bytes, "--%s: %s", foreign->name, foreign->instead);
}

static shard_status read_operand(const command_line *line, void *values, int argc, char **argv)
{
    if (optind < argc && !line->operand)
        return shard_error(SHARD_ERROR_ARGUMENT, "\"%s\" belongs to no option; see --help", argv[optind]);
    if (optind < argc && !argv[optind][0])
        return shard_error(SHARD_ERROR_ARGUMENT, "the %s is empty; see --help", line->operand);
    if (optind < argc)
        *(const char **)((char *)values + line->operand_offset) = argv[optind++];
    if (optind < argc)
        return shard_error(SHARD_ERROR_ARGUMENT, "one %s only, but there is also \"%s\"", line->operand, argv[optind]);
    return SHARD_OK;
}

static shard_status read_words(const command_line *line, void *values, int argc, char **argv, bool *help)
{
    struct option names[2 * COMMAND_MOST_OPTIONS + COMMAND_MOST_FOREIGN + 1];
    char letters[2 * COMMAND_MOST_OPTIONS + 2];
    make_getopt(line, names, letters);
    opterr = 0;
    int code;
    while ((code = getopt_long(argc, argv, letters, names, NULL)) != -1) {
        if (code == '?' && optopt > 0 && optopt < FIRST) /* a letter, of several in a word */
            return shard_error(SHARD_ERROR_ARGUMENT, "there is no option \"-%c\"; see --help", optopt);
        if (code == '?')
            return shard_error(SHARD_ERROR_ARGUMENT, "there is no option \"%s\", or it takes no value; see --help",
                               argv[optind - 1]);
        if (code == ':')
            return shard_error(SHARD_ERROR_ARGUMENT, "the option \"%s\" needs a value; see --help", argv[optind - 1]);
        const command_option *option = find_option(line, code);
        shard_status status = code >= FOREIGN            ? take_foreign(line, &line->foreign[code - FOREIGN], optarg, values)
                              : option->alone && !optarg ? read_alone(option, argc, argv, values)
                                                         : read_value(option, optarg, values);
        *help = option && option->kind == COMMAND_HELP;
        if (status != SHARD_OK || *help)
            return status;
    }
    return read_operand(line, values, argc, argv);
}

shard_status command_line_read(const command_line *line, void *values, int argc, char **argv, bool *help)
{
    command_option rows[COMMAND_MOST_OPTIONS];
    command_line flat;
    *help = false;
    memcpy(values, line->defaults, line->bytes);
    if (line->foreign_count > COMMAND_MOST_FOREIGN)
        return shard_error(SHARD_ERROR_INTERNAL, "a command line of %d options of other programs: too many", line->foreign_count);
    shard_status status = flatten(line, rows, &flat);
    return status == SHARD_OK ? read_words(&flat, values, argc, argv, help) : status;
}

/* ---- comparison over ranks ---- */

const char *command_write_number(char *text, size_t bytes, double value)
{
    snprintf(text, bytes, "%g", value);
    if (strtod(text, NULL) != value)
        snprintf(text, bytes, "%.17g", value);
    return text;
}

static void print_value(char *text, size_t bytes, const command_option *option, const void *values)
{
    const void *field = (const char *)values + option->offset;
    switch (option->kind) {
    case COMMAND_TEXT:
        snprintf(text, bytes, "%s", *(const char *const *)field ? *(const char *const *)field : "not given");
        break;
    case COMMAND_WHOLE:
        snprintf(text, bytes, "%" PRId64, *(const int64_t *)field);
        break;
    case COMMAND_NUMBER:
        command_write_number(text, bytes, *(const double *)field);
        break;
    case COMMAND_CHOICE:
        snprintf(text, bytes, "%s", command_choice_name(option->choices, *(const int *)field));
        break;
    case COMMAND_FLAG:
    case COMMAND_HELP:
        snprintf(text, bytes, "%s", *(const bool *)field ? "given" : "not given");
        break;
    case COMMAND_HEADING:
    case COMMAND_ROWS:
        break;
    }
}

typedef struct read_line {
    const command_line *line;
    const void *values;
} read_line;

/* The text of an option that may differ between ranks is empty; that of a value without room has its hash. */
static void write_option(const void *of, int64_t index, char *text)
{
    const read_line *read = of;
    const command_option *option = &read->line->options[index];
    text[0] = '\0';
    if (option->kind == COMMAND_HEADING || option->same == COMMAND_SAME_NOT)
        return;
    int used = snprintf(text, IDENTICAL_BYTES, "--%s ", option->name);
    const char *const *word = (const void *)((const char *)read->values + option->offset);
    if (option->same == COMMAND_SAME_PRESENCE)
        snprintf(text + used, IDENTICAL_BYTES - (size_t)used, "%s", *word ? "given" : "not given");
    else if (option->kind == COMMAND_TEXT && *word && strlen(*word) >= IDENTICAL_BYTES - (size_t)used)
        snprintf(text + used, IDENTICAL_BYTES - (size_t)used, "of %zu bytes, hash %016" PRIx64, strlen(*word),
                 hash_bytes(HASH_START, *word, (int64_t)strlen(*word)));
    else
        print_value(text + used, IDENTICAL_BYTES - (size_t)used, option, read->values);
}

shard_status command_line_check_identical(const command_line *line, const void *values)
{
    command_option rows[COMMAND_MOST_OPTIONS];
    command_line flat;
    if (flatten(line, rows, &flat) != SHARD_OK)
        return shard_last_status();
    return check_identical("options", "start all ranks with the same ones",
                           (identical_list){.count = flat.count, .write = write_option, .of = &(read_line){&flat, values}});
}

/* ---- help ---- */

#define HELP_COLUMN 32
#define HELP_WIDTH 100

/* Prints words from the column on, wrapped at the width. */
static void print_wrapped(FILE *file, const char *text, int column)
{
    int at = column;
    while (*text) {
        int word = (int)strcspn(text, " ");
        if (at > column && at + 1 + word > HELP_WIDTH) {
            fprintf(file, "\n%*s", column, "");
            at = column;
        }
        at += fprintf(file, at > column ? " %.*s" : "%.*s", word, text);
        text += word;
        text += strspn(text, " ");
    }
    fputc('\n', file);
}

/* Prints " (0.1)" for an option that has a default. */
static void print_default(char *text, size_t bytes, const command_line *line, const command_option *option)
{
    const char *const *word = (const void *)((const char *)line->defaults + option->offset);
    char value[64];
    if (!has_argument(option) || (option->kind == COMMAND_TEXT && !*word))
        return;
    print_value(value, sizeof value, option, line->defaults);
    snprintf(text, bytes, " (%s)", value);
}

/* The help of an option, with the word of its table, its second name and its default. */
static void write_help(char *text, size_t bytes, const command_line *line, const command_option *option)
{
    const char *hole = option->word ? strstr(option->help, "%s") : NULL;
    if (hole)
        snprintf(text, bytes, "%.*s%s%s", (int)(hole - option->help), option->help, option->word, hole + 2);
    else
        snprintf(text, bytes, "%s", option->help);
    size_t used = strlen(text);
    if (option->also)
        used += (size_t)snprintf(text + used, bytes - used, "; also --%s", option->also);
    print_default(text + used, bytes - used, line, option);
}

shard_status command_line_print_help(const command_line *line, FILE *file)
{
    command_option rows[COMMAND_MOST_OPTIONS];
    command_line flat;
    shard_status status = flatten(line, rows, &flat);
    if (status != SHARD_OK)
        return status;
    fputs(line->usage, file);
    for (int i = 0; i < flat.count; i++) {
        const command_option *option = &rows[i];
        if (option->kind == COMMAND_HEADING) {
            fprintf(file, "\n%s:\n", option->name);
            continue;
        }
        char name[64], help[512], letter[4] = "";
        if (option->letter)
            snprintf(letter, sizeof letter, "-%c,", option->letter);
        int width = snprintf(name, sizeof name, "  %-3s --%s %s", letter, option->name, option->argument ? option->argument : "");
        fprintf(file, "%-*s", HELP_COLUMN, name);
        if (width >= HELP_COLUMN)
            fprintf(file, "\n%*s", HELP_COLUMN, "");
        write_help(help, sizeof help, &flat, option);
        print_wrapped(file, help, HELP_COLUMN);
    }
    if (line->closing)
        fputs(line->closing, file);
    if (fflush(file) != 0 || ferror(file)) /* the device may be full */
        return shard_error(SHARD_ERROR_IO, "the help cannot be written: %s", strerror(errno));
    return SHARD_OK;
}
