/*
 * The steps of Adam, AdamW and LAMB, one pass: each array is read once and written once.
 *     result = keep * parameter + rate * exp_avg / (sqrt(exp_avg_sq) * root_correction + eps)
 * is the new parameter, or LAMB's update.
 */
#include "device/cuda/map.cuh"

using namespace shard;

template <class T, bool AMSGRAD> struct Adam {
    using R = Real<T>;
    R beta1, blend1, beta2, blend2, eps;
    R decay; /* added to the gradient */
    R root_correction, keep, rate;
    Word<sizeof(R)> first; /* the states are not read; a word: no bytes between the members are left undefined */
    const double *grad_scale;
    const T *gradient, *parameter;
    T *exp_avg, *exp_avg_sq, *max_exp_avg_sq; /* the last one NULL if not AMSGRAD */
    T *result;                                /* may be gradient or parameter */

    template <int N> struct In {
        Pack<T, N> gradient, parameter, average, square, highest;
    };
    template <int N> __device__ In<N> load(int64_t i) const
    {
        In<N> in = {};
        in.gradient = load_pack<T, N>(gradient + i);
        in.parameter = load_pack<T, N>(parameter + i);
        if (first)
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
        R scale = scalar<R>(grad_scale);
        for (int k = 0; k < N; k++) {
            R old = to_real(in.parameter.value[k]), g = scale * to_real(in.gradient.value[k]) + decay * old;
            R average = beta1 * to_real(in.average.value[k]) + blend1 * g;
            R square = beta2 * to_real(in.square.value[k]) + blend2 * g * g, under = square;
            if (AMSGRAD)
                under = Maximum::join(square, to_real(in.highest.value[k]));
            new_average.value[k] = round_to<T>(average);
            new_square.value[k] = round_to<T>(square);
            new_highest.value[k] = round_to<T>(under);
            out.value[k] = round_to<T>(keep * old + rate * (average / (sqrt(under) * root_correction + eps)));
        }
        store_pack(exp_avg + i, new_average);
        store_pack(exp_avg_sq + i, new_square);
        if (AMSGRAD)
            store_pack(max_exp_avg_sq + i, new_highest);
        store_pack(result + i, out);
    }
};

/* rate: that of exp_avg without its correction. */
template <class Body, class T>
static Body body_of(const shard_update *u, const shard_adam_options *o, double decay, double keep, double rate, T *result)
{
    using R = typename Body::R;
    double step = (double)u->step;
    Body body = {};
    body.beta1 = (R)o->beta1;
    body.blend1 = (R)(1 - o->beta1);
    body.beta2 = (R)o->beta2;
    body.blend2 = (R)(1 - o->beta2);
    body.eps = (R)o->eps;
    body.decay = (R)decay;
    body.root_correction = (R)(1 / sqrt(1 - pow(o->beta2, step)));
    body.keep = (R)keep;
    body.rate = (R)(rate / (1 - pow(o->beta1, step)));
    body.first = u->step == 1;
    body.grad_scale = u->grad_scale;
    body.gradient = (const T *)u->gradient;
    body.parameter = (const T *)u->value;
    body.exp_avg = (T *)u->state[0];
    body.exp_avg_sq = (T *)u->state[1];
    body.max_exp_avg_sq = o->amsgrad ? (T *)u->state[2] : NULL;
    body.result = result;
    return body;
}

template <class Body> static bool aligned(const Body &body)
{
    return aligned16(body.gradient, body.parameter, body.exp_avg, body.exp_avg_sq, body.max_exp_avg_sq);
}

template <class T, bool AMSGRAD>
static shard_status run_adam(shard_device *device, int64_t count, const shard_update *updates, const shard_adam_options *o)
{
    return run_maps<Pack<T>::SIZE, 2>(device, count, [&](int64_t i, int64_t *n, bool *is_aligned) {
        const shard_update *u = &updates[i];
        double decay = o->decoupled ? 0 : u->weight_decay, keep = o->decoupled ? 1 - u->lr * u->weight_decay : 1;
        auto body = body_of<Adam<T, AMSGRAD>>(u, o, decay, keep, -u->lr, (T *)u->value);
        *n = u->size;
        *is_aligned = aligned(body);
        return body;
    });
}

shard_status shard_cuda_adam(shard_device *device, int64_t count, const shard_update *updates, const shard_adam_options *options,
                             shard_dtype dtype)
{
    return by_float(dtype, [&](auto t) {
        using T = decltype(t);
        return options->amsgrad ? run_adam<T, true>(device, count, updates, options)
                                : run_adam<T, false>(device, count, updates, options);
    });
}

shard_status shard_cuda_lamb_update(shard_device *device, int64_t count, const shard_update *updates,
                                    const shard_adam_options *options, shard_dtype dtype)
{
    return by_float(dtype, [&](auto t) {
        using T = decltype(t);
        return run_maps<Pack<T>::SIZE, 2>(device, count, [&](int64_t i, int64_t *n, bool *is_aligned) {
            const shard_update *u = &updates[i];
            auto body = body_of<Adam<T, false>>(u, options, 0, u->weight_decay, 1, (T *)u->gradient);
            *n = u->size;
            *is_aligned = aligned(body);
            return body;
        });
    });
}
