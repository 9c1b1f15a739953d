/* cpu_tile.c's kernel for vectors of WIDTH floats, VECTOR, with the instructions
 * TARGET, named PREFIX_... Its short loops must be unrolled, so that the sums
 * stay in registers. */
#define PASTE_(a, b) a##b
#define PASTE(a, b) PASTE_(a, b)
#define NAME(stem) PASTE(stem, WIDTH)

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
            const float *a = t->a + n * t->a_image + l * t->a_line, *b = t->b + n * t->b_image + l * t->b_line;
            for (int64_t k = 0; k < t->depth; k++, a += t->a_step, b += t->b_step) {
                UNROLL
                for (int i = 0; i < rows; i++) {
                    VECTOR factor = INTRINSIC(_set1_ps)(a[i * t->a_row]);
                    UNROLL
                    for (int v = 0; v < vectors; v++)
                        sum[i][v] = INTRINSIC(_fmadd_ps)(factor, INTRINSIC(_loadu_ps)(b + v * WIDTH), sum[i][v]);
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

static __attribute__((target(TARGET))) void NAME(multiply)(const shard_cpu_tile *t, int64_t rows, int vectors)
{
    /* Those that are met most; others by single vectors. */
    if (rows == 6 && vectors == 4)
        NAME(accumulate)(t, 6, 4);
    else if (rows == 5 && vectors == 4)
        NAME(accumulate)(t, 5, 4);
    else if (rows == 6 && vectors == 3)
        NAME(accumulate)(t, 6, 3);
    else if (rows == 6 && vectors == 2)
        NAME(accumulate)(t, 6, 2);
    else if (rows == 5 && vectors == 2)
        NAME(accumulate)(t, 5, 2);
    else if (rows == 6 && vectors == 1)
        NAME(accumulate)(t, 6, 1);
    else {
        for (int64_t i = 0; i < rows; i++) {
            for (int v = 0; v < vectors; v++) {
                shard_cpu_tile one = *t;
                one.a += i * t->a_row;
                one.b += v * WIDTH;
                one.c += i * t->c_row + v * WIDTH;
                NAME(accumulate)(&one, 1, 1);
            }
        }
    }
}

#undef INTRINSIC
#undef NAME
#undef PASTE
#undef PASTE_
