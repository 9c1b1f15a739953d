/* Rows of a matrix as float64 numbers: whether they are finite, and their norms. */
#ifndef TOOLS_SEARCH_ROWS_H
#define TOOLS_SEARCH_ROWS_H

#include <stdint.h>

/* The column of the first number that is not finite or is larger than `most` in magnitude; -1: there is none. */
int64_t row_find_odd(const double *row, int64_t width, double most);
/* Divides a row of finite numbers by its 2-norm; a row of zeros stays. */
void row_normalize(double *row, int64_t width);

#endif
