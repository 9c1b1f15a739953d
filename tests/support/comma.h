/* A locale of the tests' own with a decimal comma, as a machine need not have one. */
#ifndef TESTS_SUPPORT_COMMA_H
#define TESTS_SUPPORT_COMMA_H

#include <stdbool.h>

/* Makes it, in the folder of support/scratch.h. False after a line "left out: ..." where localedef is not installed. */
bool make_decimal_comma(void);
/* Numbers of this process have a decimal comma, if the program formats them by its locale. */
void take_decimal_comma(void);

#endif
