/*
 * The arrays of optimizers' steps. Steps are written once, for a struct of arrays:
 * - TypedUpdate, of types that the compiler knows, each result rounded to the nearest: for arrays of one type, and for the
 *   mixtures that networks are trained with (by_types). It moves packs of 16 bytes and has few registers, so that enough
 *   threads are under way to wait for nothing but memory.
 * - MixedUpdate, for all else: of several types, rounded at random or with a compensation. The types are known when the kernel
 *   runs, and the step is computed in float. A pack has 4 elements, which have their random bits from one block.
 * Where both can be taken, they give the same bits.
 */
#ifndef SHARD_DEVICE_CUDA_UPDATE_CUH
#define SHARD_DEVICE_CUDA_UPDATE_CUH

#include "device/cuda/divisor.cuh"
#include "device/cuda/map.cuh"

#include "base/rounding.h"

#include <type_traits>

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

template <class T, int N> static __device__ inline void store_as(void *to, int64_t i, const Real<T> *from)
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

/* The rows of an update's value, compensation and states: those of the gradient one by one, or a list (shard_update.rows).
 * Kernels are compiled for each: a list costs a division for each pack, and waits for the row's number. */
struct SameRows {
    __device__ int64_t row_of(int64_t row) const { return row; }
    __device__ int64_t index_of(int64_t i) const { return i; }
};
struct ListedRows {
    const int64_t *rows;
    int64_t row0;
    Divisor columns;

    __device__ int64_t row_of(int64_t row) const { return rows[row] - row0; }
    __device__ int64_t index_of(int64_t i) const /* of element i of the gradient */
    {
        int64_t row = i, column = columns.split(&row);
        return row_of(row) * columns.size + column;
    }
};

/* N elements of an update's arrays as they are loaded. */
template <class G, class V, class S, int STATES, int N> struct Elements {
    int64_t at; /* the first one's index in the value's rows; in the gradient's it is the body's i */
    Pack<G, N> gradient;
    Pack<V, N> value;
    Pack<S, N> state[STATES > 0 ? STATES : 1];
};

/* The arrays of an update with the gradient's, the value's and the states' types; neither of the others is smaller than the
 * value's. Where packs are long, or indexes need registers, one pack ahead is enough and leaves room for more threads. */
template <class G, class V, class S, int STATES, class Rows> struct TypedUpdate : Rows {
    using R = Real<V>;
    enum { PACK = 16 / sizeof(V), AHEAD = PACK < 8 && std::is_same<Rows, SameRows>::value ? 2 : 1 };
    G *gradient;
    V *value;
    S *state[STATES > 0 ? STATES : 1];

    template <int N> using In = Elements<G, V, S, STATES, N>;
    /* From this memory of the gradient's elements, which begin with element i. */
    template <int N> __device__ In<N> load(int64_t i, const G *from, bool with_states) const
    {
        In<N> in = {};
        in.at = this->index_of(i);
        in.gradient = load_pack<G, N>(from);
        in.value = load_pack<V, N>(value + in.at);
        for (int s = 0; s < STATES; s++)
            if (with_states)
                in.state[s] = load_pack<S, N>(state[s] + in.at);
        return in;
    }
    template <int N> __device__ In<N> load(int64_t i, bool with_states) const { return load<N>(i, gradient + i, with_states); }
    template <int N> __device__ void store_gradient(int64_t i, R *x) const { store_as<G, N>(gradient, i, x); }
    template <int N> __device__ void store_value(int64_t at, R *x) const { store_as<V, N>(value, at, x); }
    template <int N> __device__ void store_state(int s, int64_t at, R *x) const { store_as<S, N>(state[s], at, x); }
};

/* The arrays of any update but of float64. Flags are 64-bit, so that no byte between them is undefined. Indexes are those in the
 * value's rows (index_of), but the gradient's. */
template <int STATES, class Rows> struct MixedUpdate : Rows {
    using R = float;
    enum { PACK = MIXED_PACK, AHEAD = 2 };
    Typed gradient, value, state[STATES > 0 ? STATES : 1];
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
        load_typed<N>(value, i, to);
        if (!compensation.array)
            return;
        load_typed<N>(compensation, i, rest);
        for (int k = 0; k < N; k++)
            to[k] += shard_rounding_rest(value.dtype == SHARD_BFLOAT16, to[k], rest[k]);
    }
    template <int N> __device__ void store_value(int64_t i, float *x) const
    {
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
        load_typed<N>(state[which], i, to);
    }
    template <int N> __device__ void store_state(int which, int64_t i, float *x) const
    {
        if (rounds(state[which]))
            round<N>(which + 1, state[which].dtype, i, x);
        store_typed<N>(state[which], i, x);
    }
    template <int N> __device__ void store_gradient(int64_t i, float *x) const
    {
        store_typed<N>(gradient, i, x);
    }

    template <int N> using In = Elements<float, float, float, STATES, N>;
    template <int N> __device__ void load_rest(int64_t i, bool with_states, In<N> *in) const
    {
        in->at = this->index_of(i);
        load_value<N>(in->at, in->value.value);
#pragma unroll
        for (int s = 0; s < STATES; s++)
            if (with_states)
                load_state<N>(s, in->at, in->state[s].value);
    }
    template <int N> __device__ In<N> load(int64_t i, bool with_states) const
    {
        In<N> in = {};
        load_typed<N>(gradient, i, in.gradient.value);
        load_rest<N>(i, with_states, &in);
        return in;
    }
    /* From this memory of the gradient's elements, which begin with element i. */
    template <int N> __device__ In<N> load(int64_t i, const float *from, bool with_states) const
    {
        In<N> in = {};
        in.gradient = load_pack<float, N>(from);
        load_rest<N>(i, with_states, &in);
        return in;
    }
};

/* ---- the arrays of an update ---- */

static inline void set_rows(SameRows *, const shard_update *)
{
}
static inline void set_rows(ListedRows *to, const shard_update *u)
{
    *to = {u->rows, u->row0, Divisor(u->columns > 0 ? u->columns : 1)};
}

template <int STATES, class Rows>
static inline void set_arrays(MixedUpdate<STATES, Rows> *to, const shard_update *u, const shard_update_types &types)
{
    set_rows(to, u);
    to->gradient = {u->gradient, types.gradient};
    to->value = {u->value, types.value};
    for (int s = 0; s < STATES; s++)
        to->state[s] = {u->state[s], types.state[s]};
    to->compensation = {u->compensation, types.value};
    to->key = u->key;
    to->step = u->step;
    to->factors = u->factors;
    to->place = u->place;
    to->stochastic = types.stochastic;
}
template <class G, class V, class S, int STATES, class Rows>
static inline void set_arrays(TypedUpdate<G, V, S, STATES, Rows> *to, const shard_update *u, const shard_update_types &)
{
    set_rows(to, u);
    to->gradient = (G *)u->gradient;
    to->value = (V *)u->value;
    for (int s = 0; s < STATES; s++)
        to->state[s] = (S *)u->state[s];
}

template <int PACK> static inline bool aligned_rows(const SameRows &)
{
    return true;
}
template <int PACK> static inline bool aligned_rows(const ListedRows &rows)
{
    return rows.columns.size % PACK == 0;
}

/* Whether packs of all arrays are aligned, and each in a row. */
template <int STATES, class Rows> static inline bool aligned_packs(const MixedUpdate<STATES, Rows> &u)
{
    uintptr_t wrong = !aligned_rows<MIXED_PACK>(u);
    auto check = [&](const Typed &x) {
        wrong |= (uintptr_t)x.array & (MIXED_PACK * shard_dtype_size((shard_dtype)x.dtype) - 1);
    };
    check(u.gradient);
    check(u.value);
    check(u.compensation);
    for (int s = 0; s < STATES; s++)
        check(u.state[s]);
    return wrong == 0;
}
template <class G, class V, class S, int STATES, class Rows>
static inline bool aligned_packs(const TypedUpdate<G, V, S, STATES, Rows> &u)
{
    bool aligned = aligned_rows<16 / sizeof(V)>(u) && aligned16(u.gradient, u.value);
    for (int s = 0; s < STATES; s++)
        aligned = aligned && aligned16(u.state[s]);
    return aligned;
}

/* body(SameRows()) or body(ListedRows()): all updates of a list have rows of the same kind. */
template <class Body> static inline shard_status by_rows(int64_t count, const shard_update *updates, Body &&body)
{
    return count && updates->rows ? body(ListedRows()) : body(SameRows());
}

/* Calls body(arrays) with the struct for a step with STATES states of updates with these rows. TypedUpdate is compiled for
 * - all arrays of one type; in lists of rows, whose gradients are float32, for that type alone;
 * - 16-bit values with a float32 gradient, and states of the value's type or float32;
 * - 16-bit values and gradients with float32 states, but not for lists of rows.
 * Steps with three states (AMSGrad) have none of the last two: they are rare. */
template <int STATES, class Rows, class Body>
static inline shard_status by_types(int64_t count, const shard_update *updates, const shard_update_types &types, Body &&body)
{
    constexpr bool listed = std::is_same<Rows, ListedRows>::value, rare = STATES > 2;
    bool nearest = !types.stochastic || shard_dtype_size(types.value) != 2; /* all is rounded to the nearest */
    for (int64_t i = 0; i < count; i++)
        nearest = nearest && !updates[i].compensation;
    bool wide_gradient = nearest && types.gradient == SHARD_FLOAT32, same_gradient = nearest && types.gradient == types.value;
    bool wide_states = true, same_states = true;
    for (int s = 0; s < STATES; s++) {
        wide_states = wide_states && types.state[s] == SHARD_FLOAT32;
        same_states = same_states && types.state[s] == types.value;
    }
    return by_float(types.value, [&](auto t) {
        using T = decltype(t);
        if constexpr (sizeof t == 8) {
            return body(TypedUpdate<T, T, T, STATES, SameRows>());
        } else {
            if constexpr (sizeof t == 4 || !listed)
                if (same_gradient && same_states)
                    return body(TypedUpdate<T, T, T, STATES, Rows>());
            if constexpr (sizeof t == 2 && !rare)
                if (wide_gradient && same_states)
                    return body(TypedUpdate<float, T, T, STATES, Rows>());
            if constexpr (sizeof t == 2 && !rare && STATES)
                if (wide_gradient && wide_states)
                    return body(TypedUpdate<float, T, float, STATES, Rows>());
            if constexpr (sizeof t == 2 && !rare && STATES && !listed)
                if (same_gradient && wide_states)
                    return body(TypedUpdate<T, T, float, STATES, Rows>());
            return body(MixedUpdate<STATES, Rows>());
        }
    });
}

/* As by_types: the updates of a list have rows, all of them or none. */
template <int STATES, class Body>
static inline shard_status by_arrays(int64_t count, const shard_update *updates, const shard_update_types &types, Body &&body)
{
    return by_rows(count, updates, [&](auto rows) { return by_types<STATES, decltype(rows)>(count, updates, types, body); });
}

/* The item of a list for a body with these members, and with `now`, the factors of its step. */
template <class Body> struct Update {
    enum { BLOCKS = Body::BLOCKS };
    decltype(Body::by) by;
    decltype(Body::arrays) arrays;

    __device__ Body begin() const
    {
        return {by, by.now(), arrays};
    }
};

/* Runs the body on the arrays of each update, with the rule rule_of(update). */
template <class Body, class RuleOf>
static inline shard_status run_updates(shard_device *device, int64_t count, const shard_update *updates,
                                       const shard_update_types &types, RuleOf &&rule_of)
{
    using Arrays = decltype(Body::arrays);
    return run_maps<Arrays::PACK, Arrays::AHEAD>(device, count, [&](int64_t i, int64_t *n, bool *aligned) {
        Update<Body> update = {};
        update.by = rule_of(&updates[i]);
        set_arrays(&update.arrays, &updates[i], types);
        *n = updates[i].size;
        *aligned = aligned_packs(update.arrays);
        return update;
    });
}

} // namespace shard

#endif
