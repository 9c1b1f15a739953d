#include "support/comma.h"

#include "support/check.h"
#include "support/scratch.h"

#include <errno.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

static const char comma[] =
    "comment_char %\nescape_char /\n"
    "LC_IDENTIFICATION\ntitle \"decimal comma\"\ncategory \"i18n:2012\";LC_NUMERIC\nEND LC_IDENTIFICATION\n"
    "LC_NUMERIC\ndecimal_point \",\"\nthousands_sep \".\"\ngrouping 3;3\nEND LC_NUMERIC\n";

bool make_decimal_comma(void)
{
    char command[1600];
    const char *folder = scratch_path("locales"), *source = scratch_path("comma");
    ck_assert(mkdir(folder, 0700) == 0 || errno == EEXIST);
    write_file(source, comma, sizeof comma - 1);
    /* -c: it warns of the categories that are left out, and exits with 1 then. */
    snprintf(command, sizeof command, "localedef -c -i %s -f ANSI_X3.4-1968 %s/comma >%s.log 2>&1", source, folder, source);
    if (system("command -v localedef >/dev/null") != 0) {
        printf("left out: a locale with a decimal comma, as localedef is not installed\n");
        return false;
    }
    ck_assert_int_ne(system(command), -1);
    setenv("LOCPATH", folder, 1);
    return true;
}

void take_decimal_comma(void)
{
    ck_assert_ptr_nonnull(setlocale(LC_NUMERIC, "comma"));
    ck_assert_str_eq(localeconv()->decimal_point, ",");
}
