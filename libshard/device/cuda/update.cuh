/*
 * Steps of optimizers whose arrays are of several types, or are rounded at random or with a compensation: the types are
 * known when the kernel runs, and the step is computed in float. A pack has 4 elements, which have their random
 * bits from one block.
 */
#ifndef SHARD_DEVICE_CUDA_UPDATE_CUH
#define SHARD_DEVICE_CUDA_UPDATE_CUH

#include "device/cuda/map.cuh"

#include "base/rounding.h"

namespace shard
{

enum { MIXED_PACK = 4 };

struct Typed {
    void *array;
    int64_t dtype;
};

template <class T, int N> static __device__ inline void load_as(const void *from, int64_t i, float *to)
{
    Pack<T, N> pack = load_pack<T, N>((const T *)from + i);
    for (int k = 0; k < N; k++)
        to[k] = to_real(pack.value[k]);
}

template <int N> static __device__ inline void load_typed(const Typed &from, int64_t i, float *to)
{
    if (from.dtype == SHARD_FLOAT32)
        load_as<float, N>(from.array, i, to);
    else if (from.dtype == SHARD_BFLOAT16)
        load_as<__nv_bfloat16, N>(from.array, i, to);
    else
        load_as<__half, N>(from.array, i, to);
}

template <class T, int N> static __device__ inline void store_as(void *to, int64_t i, const float *from)
{
    Pack<T, N> pack;
    for (int k = 0; k < N; k++)
        pack.value[k] = round_to<T>(from[k]);
    store_pack((T *)to + i, pack);
}

template <int N> static __device__ inline void store_typed(const Typed &to, int64_t i, const float *from)
{
    if (to.dtype == SHARD_FLOAT32)
        store_as<float, N>(to.array, i, from);
    else if (to.dtype == SHARD_BFLOAT16)
        store_as<__nv_bfloat16, N>(to.array, i, from);
    else
        store_as<__half, N>(to.array, i, from);
}

static __device__ inline float round_to_dtype(int64_t dtype, float x)
{
    if (dtype == SHARD_FLOAT32)
        return x;
    return dtype == SHARD_BFLOAT16 ? to_real(round_to<__nv_bfloat16>(x)) : to_real(round_to<__half>(x));
}

/* The rows of an update's value, compensation and states: those of the gradient one by one, or a list (shard_update.rows). Kernels
 * are compiled for each: a list costs a division for each pack. */
struct SameRows {
    __device__ int64_t row_of(int64_t row) const { return row; }
    __device__ int64_t index_of(int64_t i) const { return i; }
};
struct ListedRows {
    const int64_t *rows;
    int64_t row0, columns;

    __device__ int64_t row_of(int64_t row) const { return rows[row] - row0; }
    __device__ int64_t index_of(int64_t i) const /* of element i of the gradient */
    {
        int64_t row = i <= UINT32_MAX ? (uint32_t)i / (uint32_t)columns : i / columns;
        return row_of(row) * columns + i - row * columns;
    }
};

/* The arrays of an update. Flags are 64-bit, so that no byte between them is undefined. */
template <class Rows> struct MixedUpdate : Rows {
    Typed gradient, value, state[SHARD_OPTIMIZER_STATES];
    Typed compensation; /* NULL: none */
    uint64_t key;
    int64_t step;
    const shard_step_factors *factors;
    shard_update_place place;
    int64_t stochastic;

    __device__ bool rounds(const Typed &array) const
    {
        return stochastic && array.dtype != SHARD_FLOAT32;
    }
    /* Rounds elements i ... i + N - 1 of array number `which` of the step to values of the 16-bit type. */
    template <int N> __device__ void round(int which, int64_t dtype, int64_t i, float *x) const
    {
        const shard_draw draw = shard_rounding_draw(key, factors ? (int64_t)factors->step : step, which);
        uint64_t index = (uint64_t)(place.first + i);
        int64_t left = N; /* in the row */
        if (place.width) {
            int64_t n = place.offset + i, column = n % place.width;
            index = (uint64_t)(place.first + n / place.width * place.pitch + column);
            left = place.width - column;
        }
        shard_philox block = shard_rounding_words(draw, index);
        for (int k = 0; k < N; k++) {
            uint32_t bits = shard_rounding_bits(&block, index);
            x[k] = dtype == SHARD_BFLOAT16 ? shard_round_to_bfloat16(x[k], bits) : shard_round_to_float16(x[k], bits);
            uint64_t last = shard_rounding_block(index);
            index++;
            if (--left == 0) {
                index += (uint64_t)(place.pitch - place.width);
                left = place.width;
            }
            if (k + 1 < N && shard_rounding_block(index) != last)
                block = shard_rounding_words(draw, index);
        }
    }

    /* The value, with the compensation. */
    template <int N> __device__ void load_value(int64_t i, float *to) const
    {
        float rest[N];
        i = this->index_of(i);
        load_typed<N>(value, i, to);
        if (!compensation.array)
            return;
        load_typed<N>(compensation, i, rest);
        for (int k = 0; k < N; k++)
            to[k] += shard_rounding_rest(value.dtype == SHARD_BFLOAT16, to[k], rest[k]);
    }
    template <int N> __device__ void store_value(int64_t i, float *x) const
    {
        i = this->index_of(i);
        if (compensation.array) {
            float rest[N];
            for (int k = 0; k < N; k++)
                rest[k] = shard_rounding_lost(value.dtype == SHARD_BFLOAT16, x[k], round_to_dtype(value.dtype, x[k]));
            store_typed<N>(compensation, i, rest);
        } else if (rounds(value)) {
            round<N>(0, value.dtype, i, x);
        }
        store_typed<N>(value, i, x);
    }
    template <int N> __device__ void load_state(int which, int64_t i, float *to) const
    {
        load_typed<N>(state[which], this->index_of(i), to);
    }
    template <int N> __device__ void store_state(int which, int64_t i, float *x) const
    {
        i = this->index_of(i);
        if (rounds(state[which]))
            round<N>(which + 1, state[which].dtype, i, x);
        store_typed<N>(state[which], i, x);
    }
};

/* Whether the arrays need a kernel for several types. */
static inline bool is_mixed(const shard_update_types &types, int64_t count, const shard_update *updates)
{
    bool mixed = types.gradient != types.value;
    for (int k = 0; k < SHARD_OPTIMIZER_STATES; k++)
        mixed = mixed || types.state[k] != types.value;
    mixed = mixed || (types.stochastic && shard_dtype_size(types.value) == 2);
    return (mixed || (count && (updates->compensation || updates->rows))) && types.value != SHARD_FLOAT64;
}

static inline void set_rows(SameRows *, const shard_update *)
{
}
static inline void set_rows(ListedRows *to, const shard_update *u)
{
    *to = {u->rows, u->row0, u->columns};
}

template <class Rows> static inline MixedUpdate<Rows> mixed_of(const shard_update *u, const shard_update_types &types)
{
    MixedUpdate<Rows> mixed = {};
    set_rows(&mixed, u);
    mixed.gradient = {u->gradient, types.gradient};
    mixed.value = {u->value, types.value};
    for (int k = 0; k < SHARD_OPTIMIZER_STATES; k++)
        mixed.state[k] = {u->state[k], types.state[k]};
    mixed.compensation = {u->compensation, types.value};
    mixed.key = u->key;
    mixed.step = u->step;
    mixed.factors = u->factors;
    mixed.place = u->place;
    mixed.stochastic = types.stochastic;
    return mixed;
}

/* body(SameRows()) or body(ListedRows()): all updates of a list have rows of the same kind. */
template <class Body> static inline shard_status by_rows(const shard_update *updates, Body &&body)
{
    return updates && updates->rows ? body(ListedRows()) : body(SameRows());
}

static inline bool aligned_rows(const SameRows &)
{
    return true;
}
static inline bool aligned_rows(const ListedRows &rows)
{
    return rows.columns % MIXED_PACK == 0;
}

/* Whether packs of all arrays are aligned. */
template <class Rows> static inline bool aligned_packs(const MixedUpdate<Rows> &u)
{
    uintptr_t wrong = !aligned_rows(u);
    auto check = [&](const Typed &x) {
        wrong |= (uintptr_t)x.array & (MIXED_PACK * shard_dtype_size((shard_dtype)x.dtype) - 1);
    };
    check(u.gradient);
    check(u.value);
    check(u.compensation);
    for (int k = 0; k < SHARD_OPTIMIZER_STATES; k++)
        check(u.state[k]);
    return wrong == 0;
}

/* The elements of an update's arrays, of a body's map. */
template <int N> struct MixedIn {
    float gradient[N], value[N], state[SHARD_OPTIMIZER_STATES][N];
};

} // namespace shard

#endif
