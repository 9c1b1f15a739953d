/* cpu_tile.c's kernel for vectors of WIDTH floats, VECTOR, with the instructions
 * TARGET, named PREFIX_..., of elements that SPREAD and LOAD read as OPERAND and
 * MULTIPLY multiplies and adds. Its short loops must be unrolled, so that the sums
 * stay in registers. */
#define PASTE_(a, b) a##b
#define PASTE(a, b) PASTE_(a, b)
#define NAME(stem) PASTE(stem, SUFFIX)

#define INTRINSIC(stem) PASTE(PREFIX, stem)

/* Some rows of the tile, whose operands are at a, b and c: a constant number of rows and of vectors. Returns the next address to
 * fetch. */
static inline __attribute__((always_inline, target(TARGET))) const char *
NAME(accumulate)(const shard_cpu_tile *t, const ELEMENT *a_rows, const ELEMENT *b_columns, float *c, const char *fetch, int rows,
                 int vectors)
{
    VECTOR sum[SHARD_CPU_TILE_ROWS][SHARD_CPU_TILE_MOST_COLS / WIDTH];
    UNROLL
    for (int i = 0; i < rows; i++) {
        UNROLL
        for (int v = 0; v < vectors; v++)
            sum[i][v] = t->accumulate ? INTRINSIC(_loadu_ps)(c + i * t->c_row + v * WIDTH) : INTRINSIC(_setzero_ps)();
    }
    for (int64_t n = 0; n < t->images; n++) {
        for (int64_t l = 0; l < t->lines; l++) {
            const ELEMENT *a = a_rows + n * t->a_image + l * t->a_line;
            const ELEMENT *b = b_columns + n * t->b_image + l * t->b_line;
            for (int64_t k = 0, end; k < t->depth; k = end) {
                end = t->depth - k > SHARD_CPU_TILE_FETCH ? k + SHARD_CPU_TILE_FETCH : t->depth;
                for (int line = 0; line < t->fetch_lines && fetch < t->fetch_end; line++, fetch += SHARD_CPU_CACHE_LINE)
                    __builtin_prefetch(fetch, 0, 2);
                for (int64_t step = k; step < end; step++, a += t->a_step, b += t->b_step) {
                    UNROLL
                    for (int i = 0; i < rows; i++) {
                        OPERAND factor = SPREAD(a + i * t->a_row);
                        UNROLL
                        for (int v = 0; v < vectors; v++)
                            sum[i][v] = MULTIPLY(factor, LOAD(b + v * WIDTH), sum[i][v]);
                    }
                }
            }
        }
    }
    UNROLL
    for (int i = 0; i < rows; i++) {
        UNROLL
        for (int v = 0; v < vectors; v++)
            INTRINSIC(_storeu_ps)(c + i * t->c_row + v * WIDTH, sum[i][v]);
    }
    return fetch;
}

/* All rows, in blocks of nearly the same size: a block of few rows has fewer sums than the processor begins while one is added.
 */
static __attribute__((target(TARGET))) const char *NAME(multiply_columns)(const shard_cpu_tile *t, int64_t rows, int first,
                                                                          int vectors, const char *fetch)
{
    const ELEMENT *a = t->a, *b = (const ELEMENT *)t->b + first * WIDTH;
    float *c = t->c + first * WIDTH;
    int64_t blocks = (rows + SHARD_CPU_TILE_ROWS - 1) / SHARD_CPU_TILE_ROWS;
    for (int64_t count; rows > 0; rows -= count, a += count * t->a_row, c += count * t->c_row) {
        count = (rows + blocks - 1) / blocks;
        blocks--;
#define CASE(ROWS)                                                                                                               \
    case ROWS:                                                                                                                   \
        fetch = vectors == 4 && WIDTH == 16 ? NAME(accumulate)(t, a, b, c, fetch, ROWS, 4)                                       \
                : vectors == 2              ? NAME(accumulate)(t, a, b, c, fetch, ROWS, 2)                                       \
                                            : NAME(accumulate)(t, a, b, c, fetch, ROWS, 1);                                                   \
        break;
        switch (count) {
            CASE(1)
            CASE(2)
            CASE(3)
            CASE(4)
            CASE(5)
            CASE(6)
        }
#undef CASE
    }
    return fetch;
}

/* As many vectors at a time as tiles of constant size have. */
static __attribute__((target(TARGET))) void NAME(multiply)(const shard_cpu_tile *t, int64_t rows, int vectors)
{
    const char *fetch = t->fetch;
    for (int v = 0, count; v < vectors; v += count) {
        count = WIDTH == 16 && vectors - v >= 4 ? 4 : vectors - v >= 2 ? 2 : 1;
        fetch = NAME(multiply_columns)(t, rows, v, count, fetch);
    }
}

#undef INTRINSIC
#undef NAME
#undef PASTE
#undef PASTE_
