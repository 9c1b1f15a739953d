/* Numbers among the arguments of the benchmarks. A word that is none ends the program. */
#ifndef TOOLS_ARGUMENTS_H
#define TOOLS_ARGUMENTS_H

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static inline _Noreturn void refuse_argument(const char *text, const char *expected)
{
    fprintf(stderr, "\"%s\" is not %s\n", text, expected);
    exit(2);
}

static inline int64_t whole_argument(const char *text)
{
    char *end;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (*end || number < 1 || errno != 0)
        refuse_argument(text, "a whole number of at least 1");
    return number;
}

static inline double number_argument(const char *text)
{
    char *end;
    double number = strtod(text, &end);
    if (*end || !(number > 0))
        refuse_argument(text, "a number above 0");
    return number;
}

#endif
