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
    const float *a = t->a, *b = t->b;
    for (int64_t k = 0; k < t->depth; k++, a += t->a_step, b += t->b_row) {
        UNROLL
        for (int i = 0; i < rows; i++) {
            VECTOR factor = INTRINSIC(_set1_ps)(a[i * t->a_row]);
            UNROLL
            for (int v = 0; v < vectors; v++)
                sum[i][v] = INTRINSIC(_fmadd_ps)(factor, INTRINSIC(_loadu_ps)(b + v * WIDTH), sum[i][v]);
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
    if (rows == SHARD_CPU_TILE_ROWS) {
        if (vectors == 1)
            NAME(accumulate)(t, SHARD_CPU_TILE_ROWS, 1);
        else if (vectors == 2)
            NAME(accumulate)(t, SHARD_CPU_TILE_ROWS, 2);
        else if (vectors == 3)
            NAME(accumulate)(t, SHARD_CPU_TILE_ROWS, 3);
        else
            NAME(accumulate)(t, SHARD_CPU_TILE_ROWS, 4);
        return;
    }
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

#undef INTRINSIC
#undef NAME
#undef PASTE
#undef PASTE_
