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
    T *exp_avg, *exp_avg_sq, *max_exp_avg_sq;
    T *result; /* may be gradient or parameter */

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

/* What Adam and LAMB have in common; rate is that of exp_avg without its correction. */
template <class Body> static void set(Body *body, const shard_adam_options *o, double decay, double keep, double rate)
{
    using R = typename Body::R;
    double step = (double)o->step;
    body->beta1 = (R)o->beta1;
    body->blend1 = (R)(1 - o->beta1);
    body->beta2 = (R)o->beta2;
    body->blend2 = (R)(1 - o->beta2);
    body->eps = (R)o->eps;
    body->decay = (R)decay;
    body->root_correction = (R)(1 / sqrt(1 - pow(o->beta2, step)));
    body->keep = (R)keep;
    body->rate = (R)(rate / (1 - pow(o->beta1, step)));
    body->first = o->step == 1;
    body->grad_scale = o->grad_scale;
}

shard_status shard_cuda_adam(shard_device *device, int64_t n, const shard_adam_options *options, const void *gradient,
                             void *exp_avg, void *exp_avg_sq, void *max_exp_avg_sq, void *parameter, shard_dtype dtype)
{
    double decay = options->decoupled ? 0 : options->weight_decay;
    double keep = options->decoupled ? 1 - options->lr * options->weight_decay : 1;
    return by_float(dtype, [&](auto t) {
        using T = decltype(t);
        auto run = [&](auto body) {
            set(&body, options, decay, keep, -options->lr);
            body.gradient = (const T *)gradient;
            body.parameter = body.result = (T *)parameter;
            body.exp_avg = (T *)exp_avg;
            body.exp_avg_sq = (T *)exp_avg_sq;
            body.max_exp_avg_sq = (T *)max_exp_avg_sq;
            return run_map<Pack<T>::SIZE, 2>(device, n, aligned16(gradient, exp_avg, exp_avg_sq, max_exp_avg_sq, parameter),
                                             body);
        };
        return max_exp_avg_sq ? run(Adam<T, true>()) : run(Adam<T, false>());
    });
}

shard_status shard_cuda_lamb_update(shard_device *device, int64_t n, const shard_adam_options *options, void *gradient,
                                    void *exp_avg, void *exp_avg_sq, const void *parameter, shard_dtype dtype)
{
    return by_float(dtype, [&](auto t) {
        using T = decltype(t);
        Adam<T, false> body = {};
        set(&body, options, 0, options->weight_decay, 1);
        body.gradient = body.result = (T *)gradient;
        body.parameter = (const T *)parameter;
        body.exp_avg = (T *)exp_avg;
        body.exp_avg_sq = (T *)exp_avg_sq;
        return run_map<Pack<T>::SIZE, 2>(device, n, aligned16(gradient, exp_avg, exp_avg_sq, parameter), body);
    });
}
