/*
 * Options of a command line, read by getopt_long from one table: each option's name, kind, range and help. The defaults
 * in the help, the messages and the comparison over ranks come from the same table.
 */
#ifndef COMMON_COMMAND_LINE_H
#define COMMON_COMMAND_LINE_H

#include <shard/base.h>

#include <stdio.h>

/* The type of an option's field: bool, const char *, int64_t, double, int. HELP is a FLAG that ends the reading. ROWS stands for
 * the rows of another table, whose struct is a field of this one. */
typedef enum command_kind {
    COMMAND_HEADING = 0,
    COMMAND_FLAG,
    COMMAND_HELP,
    COMMAND_TEXT,
    COMMAND_WHOLE,
    COMMAND_NUMBER,
    COMMAND_CHOICE,
    COMMAND_ROWS
} command_kind;

/* Whether ranks must have identical values. */
typedef enum command_same { COMMAND_SAME_VALUE = 0, COMMAND_SAME_PRESENCE, COMMAND_SAME_NOT } command_same;

typedef struct command_choice {
    const char *name; /* NULL ends the list */
    int value;
} command_choice;

typedef struct command_option {
    command_kind kind;
    const char *name, *help; /* a heading: its text; ROWS: what is put for a %s of the help texts */
    const char *argument;    /* its name in the help; "FILE": a path that is not a folder; "FILE|auto": or auto; "TEXT": any text */
    const char *also;        /* a second name, as another program has it */
    size_t offset;           /* of the field */
    double least, most;
    const command_choice *choices;
    const char *alone; /* its value without an argument; NULL: the argument is required */
    char letter;
    command_same same;
    const struct command_option *rows; /* of ROWS: a table that a row without a name ends, and that has no ROWS */
    const char *word;                  /* made by command_line.c: that of the ROWS that an option comes from */
} command_option;

/* The largest whole number that a range may end with, 2^53: least and most are doubles. */
#define COMMAND_MOST_WHOLE 9007199254740992.0

/* An option of another program, which is accepted so that a script runs unchanged; `instead` says what to write. */
typedef struct command_foreign {
    const char *name;
    bool takes_value;
    const char *instead;
    shard_status (*apply)(void *values, const char *value); /* sets what it means; NULL: nothing is done */
} command_foreign;

#define COMMAND_MOST_FOREIGN 16

/* The foreign options that were given, each once: a field of the values. */
typedef struct command_notes {
    const command_foreign *of[COMMAND_MOST_FOREIGN];
    int count;
} command_notes;

#define COMMAND_MOST_OPTIONS 128

typedef struct command_line {
    const command_option *options;
    int count;            /* at most COMMAND_MOST_OPTIONS, with those of ROWS */
    const void *defaults; /* a struct of the fields */
    size_t bytes;         /* its size */
    const char *operand;  /* the name of the only word without an option; NULL: there is none */
    size_t operand_offset;
    const char *usage, *closing; /* the first and the last lines of the help; closing may be NULL */
    const command_foreign *foreign;
    int foreign_count;   /* at most COMMAND_MOST_FOREIGN */
    size_t notes_offset; /* of command_notes, if there are any */
} command_line;

/* Fills values, a struct as defaults, from the arguments; texts are not copied. *help: --help is given, and what follows is
 * not read. ARGUMENT for an option that is unknown or whose value is not valid. */
shard_status command_line_read(const command_line *line, void *values, int argc, char **argv, bool *help);

/* MISMATCH if ranks have different values of options that must be equal. Collective over the world. */
shard_status command_line_check_identical(const command_line *line, const void *values);

/* The name of a value of a list; static. */
const char *command_choice_name(const command_choice *choices, int value);

/* Writes a number's text by %g if that reads back to the same bits, else with 17 digits. Returns text. */
const char *command_write_number(char *text, size_t bytes, double value);

/* "--dummy: write --synthetic 1281167" of a foreign option. */
void command_write_note(const command_foreign *foreign, char *text, size_t bytes);

/* IO where the file cannot be written. */
shard_status command_line_print_help(const command_line *line, FILE *file);

#endif
