/* cpu_tile.c's kernel for vectors of WIDTH floats, VECTOR, with the instructions
 * TARGET, named PREFIX_..., of elements that SPREAD and LOAD read as OPERAND and
 * MULTIPLY multiplies and adds. Its short loops must be unrolled, so that the sums
 * stay in registers. */
#define PASTE_(a, b) a##b
#define PASTE(a, b) PASTE_(a, b)
#define NAME(stem) PASTE(stem, SUFFIX)

#define INTRINSIC(stem) PASTE(PREFIX, stem)

static inline __attribute__((always_inline, target(TARGET))) void NAME(accumulate)(const shard_cpu_tile *t, int rows, int vectors)
{
    VECTOR sum[SHARD_CPU_TILE_ROWS][SHARD_CPU_TILE_MOST_COLS / WIDTH];
    UNROLL
    for (int i = 0; i < rows; i++) {
        UNROLL
        for (int v = 0; v < vectors; v++)
            sum[i][v] = t->accumulate ? INTRINSIC(_loadu_ps)(t->c + i * t->c_row + v * WIDTH) : INTRINSIC(_setzero_ps)();
    }
    for (int64_t n = 0; n < t->images; n++) {
        for (int64_t l = 0; l < t->lines; l++) {
            const ELEMENT *a = (const ELEMENT *)t->a + n * t->a_image + l * t->a_line;
            const ELEMENT *b = (const ELEMENT *)t->b + n * t->b_image + l * t->b_line;
            for (int64_t k = 0; k < t->depth; k++, a += t->a_step, b += t->b_step) {
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
    UNROLL
    for (int i = 0; i < rows; i++) {
        UNROLL
        for (int v = 0; v < vectors; v++)
            INTRINSIC(_storeu_ps)(t->c + i * t->c_row + v * WIDTH, sum[i][v]);
    }
}

/* As many vectors as tiles of constant size have; returns how many. */
static __attribute__((target(TARGET))) int NAME(multiply_rows)(const shard_cpu_tile *t, int64_t rows, int vectors)
{
#define CASE(ROWS)                                                                                                               \
    case ROWS:                                                                                                                   \
        if (vectors >= 4 && WIDTH == 16) {                                                                                       \
            NAME(accumulate)(t, ROWS, 4);                                                                                        \
            return 4;                                                                                                            \
        }                                                                                                                        \
        if (vectors >= 2) {                                                                                                      \
            NAME(accumulate)(t, ROWS, 2);                                                                                        \
            return 2;                                                                                                            \
        }                                                                                                                        \
        NAME(accumulate)(t, ROWS, 1);                                                                                            \
        return 1;
    switch (rows) {
        CASE(1)
        CASE(2)
        CASE(3)
        CASE(4)
        CASE(5)
        CASE(6)
    }
#undef CASE
    return vectors;
}

static __attribute__((target(TARGET))) void NAME(multiply)(const shard_cpu_tile *t, int64_t rows, int vectors)
{
    for (int v = 0; v < vectors;) {
        shard_cpu_tile part = *t;
        part.b = (const ELEMENT *)part.b + v * WIDTH;
        part.c += v * WIDTH;
        v += NAME(multiply_rows)(&part, rows, vectors - v);
    }
}

#undef INTRINSIC
#undef NAME
#undef PASTE
#undef PASTE_
