#include "ngrams.h"

#include "random.h"

#include <string.h>

#define LONGEST 4
#define MOST_BYTES 255

/* The bytes as a number, and the kind: distinct features have distinct keys. */
static int64_t hash_to_row(uint64_t kind, uint64_t bytes, int64_t rows)
{
    return 1 + (int64_t)(random_hash(kind, bytes, 0) % (uint64_t)(rows - 1));
}

int ngrams_list(const char *word, int64_t rows, int64_t *row)
{
    unsigned char marked[MOST_BYTES + 3];
    int count = 0, length = (int)strnlen(word, MOST_BYTES);
    marked[0] = '^';
    memcpy(marked + 1, word, (size_t)length);
    marked[length + 1] = '$';
    for (int i = 0; i < length + 2; i++) {
        uint64_t bytes = 0;
        for (int n = 1; n <= LONGEST && i + n <= length + 2 && count < NGRAMS_MOST; n++) {
            bytes = bytes << 8 | marked[i + n - 1];
            if (n > 1 || (i > 0 && i <= length))
                row[count++] = hash_to_row((uint64_t)n, bytes, rows);
        }
        if (i + 2 < length + 2 && count < NGRAMS_MOST)
            row[count++] = hash_to_row(LONGEST + 1, (uint64_t)marked[i] << 8 | marked[i + 2], rows);
    }
    return count;
}
