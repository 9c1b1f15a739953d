/*
 * The steps of Adam, AdamW and LAMB, one pass: each array is read once and written once.
 *     result = keep * parameter + rate * exp_avg / (sqrt(exp_avg_sq) * root_correction + eps)
 * is the new parameter, or LAMB's update.
 */
#include "device/cuda/update.cuh"

using namespace shard;

enum Flag { FIRST = 1 /* the states are not read */, TO_GRADIENT = 2 /* the result goes there */ };

template <class R> struct Rule {
    R beta1, blend1, beta2, blend2, eps;
    R decay; /* added to the gradient */
    R root_correction, keep, rate;
    Word<sizeof(R)> flags; /* a word: no bytes between the members are left undefined */
    const shard_step_factors *factors; /* NULL: those above */
    const double *grad_scale;

    /* The factors of this step. */
    struct Now {
        R scale, root, keep, rate;
    };
    __device__ bool is_first() const
    {
        return factors ? factors->first != 0 : (bool)(flags & FIRST);
    }
    __device__ Now now() const
    {
        if (factors)
            return {scalar<R>(grad_scale), (R)factors->root_correction, (R)factors->keep, (R)factors->rate};
        return {scalar<R>(grad_scale), root_correction, keep, rate};
    }
    /* The result; state: exp_avg, exp_avg_sq, max_exp_avg_sq become the new ones. */
    template <bool AMSGRAD> __device__ R step(const Now &now, R gradient, R old, R state[3]) const
    {
        R g = now.scale * gradient + decay * old;
        state[0] = beta1 * state[0] + blend1 * g;
        state[1] = beta2 * state[1] + blend2 * g * g;
        state[2] = AMSGRAD ? Maximum::join(state[1], state[2]) : state[1];
        return now.keep * old + now.rate * (state[0] / (sqrt(state[2]) * now.root + eps));
    }
};

template <class T, bool AMSGRAD> struct Adam {
    using R = Real<T>;
    Rule<R> by;
    T *gradient, *parameter;
    T *exp_avg, *exp_avg_sq, *max_exp_avg_sq; /* the last one NULL if not AMSGRAD */

    template <int N> struct In {
        Pack<T, N> gradient, parameter, average, square, highest;
    };
    template <int N> __device__ In<N> load(int64_t i) const
    {
        In<N> in = {};
        in.gradient = load_pack<T, N>(gradient + i);
        in.parameter = load_pack<T, N>(parameter + i);
        if (by.is_first())
            return in;
        in.average = load_pack<T, N>(exp_avg + i);
        in.square = load_pack<T, N>(exp_avg_sq + i);
        if (AMSGRAD)
            in.highest = load_pack<T, N>(max_exp_avg_sq + i);
        return in;
    }
    template <int N> __device__ void store(int64_t i, const In<N> &in) const
    {
        Pack<T, N> new_average, new_square, new_highest, out;
        auto now = by.now();
        for (int k = 0; k < N; k++) {
            R state[3] = {to_real(in.average.value[k]), to_real(in.square.value[k]), to_real(in.highest.value[k])};
            R old = to_real(in.parameter.value[k]);
            out.value[k] = round_to<T>(by.template step<AMSGRAD>(now, to_real(in.gradient.value[k]), old, state));
            new_average.value[k] = round_to<T>(state[0]);
            new_square.value[k] = round_to<T>(state[1]);
            new_highest.value[k] = round_to<T>(state[2]);
        }
        store_pack(exp_avg + i, new_average);
        store_pack(exp_avg_sq + i, new_square);
        if (AMSGRAD)
            store_pack(max_exp_avg_sq + i, new_highest);
        store_pack((by.flags & TO_GRADIENT ? gradient : parameter) + i, out);
    }
};

template <bool AMSGRAD, class Rows> struct MixedAdam {
    Rule<float> by;
    MixedUpdate<Rows> update;

    template <int N> using In = MixedIn<N>;
    template <int N> __device__ In<N> load(int64_t i) const
    {
        In<N> in = {};
        load_typed<N>(update.gradient, i, in.gradient);
        update.template load_value<N>(i, in.value);
        for (int s = 0; s < (AMSGRAD ? 3 : 2) && !by.is_first(); s++)
            update.template load_state<N>(s, i, in.state[s]);
        return in;
    }
    template <int N> __device__ void store(int64_t i, const In<N> &in) const
    {
        float out[N], states[3][N];
        auto now = by.now();
        for (int k = 0; k < N; k++) {
            float state[3] = {in.state[0][k], in.state[1][k], in.state[2][k]};
            out[k] = by.template step<AMSGRAD>(now, in.gradient[k], in.value[k], state);
            for (int s = 0; s < 3; s++)
                states[s][k] = state[s];
        }
        for (int s = 0; s < (AMSGRAD ? 3 : 2); s++)
            update.template store_state<N>(s, i, states[s]);
        if (by.flags & TO_GRADIENT)
            store_typed<N>(update.gradient, i, out);
        else
            update.template store_value<N>(i, out);
    }
};

/* decay: added to the gradient. */
template <class R> static Rule<R> rule_of(const shard_update *u, const shard_adam_arguments *o, bool lamb)
{
    shard_step_factors factors = shard_adam_factors(u, o, lamb);
    Rule<R> by = {};
    by.beta1 = (R)o->beta1;
    by.blend1 = (R)(1 - o->beta1);
    by.beta2 = (R)o->beta2;
    by.blend2 = (R)(1 - o->beta2);
    by.eps = (R)o->eps;
    by.decay = (R)(lamb || o->decoupled ? 0 : u->weight_decay);
    by.root_correction = (R)factors.root_correction;
    by.keep = (R)factors.keep;
    by.rate = (R)factors.rate;
    by.flags = (u->step == 1 ? FIRST : 0) | (lamb ? TO_GRADIENT : 0);
    by.factors = u->factors;
    by.grad_scale = u->grad_scale;
    return by;
}

template <class T, bool AMSGRAD>
static shard_status run(shard_device *device, int64_t count, const shard_update *updates, const shard_adam_arguments *o, bool lamb)
{
    return run_maps<Pack<T>::SIZE, 2>(device, count, [&](int64_t i, int64_t *n, bool *aligned) {
        const shard_update *u = &updates[i];
        Adam<T, AMSGRAD> body = {};
        body.by = rule_of<Real<T>>(u, o, lamb);
        body.gradient = (T *)u->gradient;
        body.parameter = (T *)u->value;
        body.exp_avg = (T *)u->state[0];
        body.exp_avg_sq = (T *)u->state[1];
        body.max_exp_avg_sq = AMSGRAD ? (T *)u->state[2] : NULL;
        *n = u->size;
        *aligned = aligned16(body.gradient, body.parameter, body.exp_avg, body.exp_avg_sq, body.max_exp_avg_sq);
        return body;
    });
}

template <bool AMSGRAD, class Rows>
static shard_status run_mixed(shard_device *device, int64_t count, const shard_update *updates, const shard_adam_arguments *o,
                              bool lamb, const shard_update_types &types)
{
    return run_maps<MIXED_PACK, 2>(device, count, [&](int64_t i, int64_t *n, bool *aligned) {
        const shard_update *u = &updates[i];
        MixedAdam<AMSGRAD, Rows> body = {};
        body.by = rule_of<float>(u, o, lamb);
        body.update = mixed_of<Rows>(u, types);
        *n = u->size;
        *aligned = aligned_packs(body.update);
        return body;
    });
}

static shard_status run_typed(shard_device *device, int64_t count, const shard_update *updates, const shard_adam_arguments *o,
                              bool lamb, const shard_update_types &types)
{
    bool amsgrad = o->amsgrad && !lamb;
    if (is_mixed(types, count, updates))
        return by_rows(updates, [&](auto rows) {
            using Rows = decltype(rows);
            return amsgrad ? run_mixed<true, Rows>(device, count, updates, o, lamb, types)
                           : run_mixed<false, Rows>(device, count, updates, o, lamb, types);
        });
    return by_float(types.value, [&](auto t) {
        using T = decltype(t);
        return amsgrad ? run<T, true>(device, count, updates, o, lamb) : run<T, false>(device, count, updates, o, lamb);
    });
}

shard_status shard_cuda_adam(shard_device *device, int64_t count, const shard_update *updates, const shard_adam_arguments *options,
                             shard_update_types types)
{
    return run_typed(device, count, updates, options, false, types);
}

shard_status shard_cuda_lamb_update(shard_device *device, int64_t count, const shard_update *updates,
                                    const shard_adam_arguments *options, shard_update_types types)
{
    return run_typed(device, count, updates, options, true, types);
}
