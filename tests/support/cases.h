/*
 * Tables of untrusted files: tests/untrusted/NAME.txt. A case is three lines, and an empty one behind them:
 *     name: a duplicate key            words, different for each case
 *     make: 1 {"a":1,"a":2}            the file; the test's own language, with bytes as below
 *     told: FILE is not ...            the whole text that the program says of it
 * Lines that begin with # are comments. A new text is reviewed in the difference of the table that SHARD_RENEW_CASES=1 makes the
 * test write.
 */
#ifndef TESTS_SUPPORT_CASES_H
#define TESTS_SUPPORT_CASES_H

#include <stddef.h>

typedef struct untrusted_case {
    const char *name, *make, *told;
    char *now; /* set by case_told */
} untrusted_case;

typedef struct case_table {
    char path[1024], *text;
    untrusted_case *cases;
    int count;
} case_table;

/* Fails the test if the table is not as above, or two cases have one name. */
case_table cases_open(const char *name);
/* Records the text that the program says now, in which `path` becomes `shown`, NULL: nothing is replaced. */
void case_told(untrusted_case *of, const char *text, const char *path, const char *shown);
/* Prints the number of cases and fails the test if a text is another one, or writes the new texts. */
void cases_close(case_table *table);

/*
 * The bytes that a text of a table describes; freed by free().
 *     %00 to %FF, in capital digits     a byte
 *     %%                                a percent sign
 *     %(N TEXT)                         TEXT N times; TEXT has no parenthesis but those of %T(...)
 *     %#(N TEXT)                        the same, with # in TEXT replaced by 0, 1, 2, ...
 *     %T(F32 [2,3] 0 24)                {"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}
 */
unsigned char *case_bytes(const char *text, size_t *bytes);

/*
 * The safetensors file that a text describes: "raw " and its bytes; or the number of bytes of data (1, 2, 3, ...), a space and
 * the header's text, whose length is added. %H in it: the header's checksum, as it is right. Freed by free().
 */
unsigned char *case_file(const char *text, size_t *bytes);
/* Sets the length before a header's text, and its checksum if it has one of zeros. */
void case_seal(unsigned char *file, size_t header_bytes);

#endif
