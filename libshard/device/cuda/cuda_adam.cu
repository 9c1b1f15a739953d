/*
 * The steps of Adam, AdamW and LAMB, one pass: each array is read once and written once.
 *     result = keep * parameter + rate * exp_avg / (sqrt(exp_avg_sq) * root_correction + eps)
 * is the new parameter, or LAMB's update.
 */
#include "device/cuda/map.cuh"

using namespace shard;

enum Flag { FIRST = 1 /* the states are not read */, TO_GRADIENT = 2 /* the result goes there */ };

template <class T, bool AMSGRAD> struct Adam {
    using R = Real<T>;
    R beta1, blend1, beta2, blend2, eps;
    R decay; /* added to the gradient */
    R root_correction, keep, rate;
    Word<sizeof(R)> flags; /* a word: no bytes between the members are left undefined */
    const shard_step_factors *factors; /* NULL: those above */
    const double *grad_scale;
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
        if (factors ? factors->first != 0 : (bool)(flags & FIRST))
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
        R scale = scalar<R>(grad_scale), root = root_correction, kept = keep, step = rate;
        if (factors) {
            root = (R)factors->root_correction;
            kept = (R)factors->keep;
            step = (R)factors->rate;
        }
        for (int k = 0; k < N; k++) {
            R old = to_real(in.parameter.value[k]), g = scale * to_real(in.gradient.value[k]) + decay * old;
            R average = beta1 * to_real(in.average.value[k]) + blend1 * g;
            R square = beta2 * to_real(in.square.value[k]) + blend2 * g * g, under = square;
            if (AMSGRAD)
                under = Maximum::join(square, to_real(in.highest.value[k]));
            new_average.value[k] = round_to<T>(average);
            new_square.value[k] = round_to<T>(square);
            new_highest.value[k] = round_to<T>(under);
            out.value[k] = round_to<T>(kept * old + step * (average / (sqrt(under) * root + eps)));
        }
        store_pack(exp_avg + i, new_average);
        store_pack(exp_avg_sq + i, new_square);
        if (AMSGRAD)
            store_pack(max_exp_avg_sq + i, new_highest);
        store_pack((flags & TO_GRADIENT ? gradient : parameter) + i, out);
    }
};

/* decay: added to the gradient. */
template <class Body, class T>
static Body body_of(const shard_update *u, const shard_adam_arguments *o, double decay, bool lamb)
{
    using R = typename Body::R;
    shard_step_factors factors = shard_adam_factors(u, o, lamb);
    Body body = {};
    body.beta1 = (R)o->beta1;
    body.blend1 = (R)(1 - o->beta1);
    body.beta2 = (R)o->beta2;
    body.blend2 = (R)(1 - o->beta2);
    body.eps = (R)o->eps;
    body.decay = (R)decay;
    body.root_correction = (R)factors.root_correction;
    body.keep = (R)factors.keep;
    body.rate = (R)factors.rate;
    body.flags = (u->step == 1 ? FIRST : 0) | (lamb ? TO_GRADIENT : 0);
    body.factors = u->factors;
    body.grad_scale = u->grad_scale;
    body.gradient = (T *)u->gradient;
    body.parameter = (T *)u->value;
    body.exp_avg = (T *)u->state[0];
    body.exp_avg_sq = (T *)u->state[1];
    body.max_exp_avg_sq = o->amsgrad ? (T *)u->state[2] : NULL;
    return body;
}

template <class Body> static bool aligned(const Body &body)
{
    return aligned16(body.gradient, body.parameter, body.exp_avg, body.exp_avg_sq, body.max_exp_avg_sq);
}

template <class T, bool AMSGRAD>
static shard_status run_adam(shard_device *device, int64_t count, const shard_update *updates, const shard_adam_arguments *o)
{
    return run_maps<Pack<T>::SIZE, 2>(device, count, [&](int64_t i, int64_t *n, bool *is_aligned) {
        const shard_update *u = &updates[i];
        auto body = body_of<Adam<T, AMSGRAD>, T>(u, o, o->decoupled ? 0 : u->weight_decay, false);
        *n = u->size;
        *is_aligned = aligned(body);
        return body;
    });
}

shard_status shard_cuda_adam(shard_device *device, int64_t count, const shard_update *updates, const shard_adam_arguments *options,
                             shard_dtype dtype)
{
    return by_float(dtype, [&](auto t) {
        using T = decltype(t);
        return options->amsgrad ? run_adam<T, true>(device, count, updates, options)
                                : run_adam<T, false>(device, count, updates, options);
    });
}

shard_status shard_cuda_lamb_update(shard_device *device, int64_t count, const shard_update *updates,
                                    const shard_adam_arguments *options, shard_dtype dtype)
{
    return by_float(dtype, [&](auto t) {
        using T = decltype(t);
        return run_maps<Pack<T>::SIZE, 2>(device, count, [&](int64_t i, int64_t *n, bool *is_aligned) {
            const shard_update *u = &updates[i];
            auto body = body_of<Adam<T, false>, T>(u, options, 0, true);
            *n = u->size;
            *is_aligned = aligned(body);
            return body;
        });
    });
}
