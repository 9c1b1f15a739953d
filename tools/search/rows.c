#include "rows.h"

#include <math.h>

int64_t row_find_odd(const double *row, int64_t width, double most)
{
    int odd = 0;
    for (int64_t i = 0; i < width; i++)
        odd |= !(fabs(row[i]) <= most);
    for (int64_t i = 0; i < width && odd; i++)
        if (!(fabs(row[i]) <= most))
            return i;
    return -1;
}

void row_normalize(double *row, int64_t width)
{
    double largest = 0, sum = 0;
    for (int64_t i = 0; i < width; i++)
        largest = fabs(row[i]) > largest ? fabs(row[i]) : largest;
    if (largest == 0)
        return;
    for (int64_t i = 0; i < width; i++)
        sum += (row[i] / largest) * (row[i] / largest);
    double root = sqrt(sum);
    for (int64_t i = 0; i < width; i++)
        row[i] = row[i] / largest / root;
}
