/* As products of the windows of one image and group at a time. */
#include "convolution.h"

#include "products.h"

#include <vector>

namespace emulation {

size_t span(const Images &images, cudaDataType type)
{
    int64_t last = 0;
    for (int i = 0; i < 4; i++)
        last += (images.size[i] - 1) * images.stride[i];
    return (size_t)(last + 1) * size_of(type);
}

static int64_t count(const Images &images)
{
    return images.size[0] * images.size[1] * images.size[2] * images.size[3];
}

static char *place(const Images &images, int64_t i, cudaDataType type)
{
    int64_t at = 0;
    for (int d = 3; d >= 0; d--) {
        at += i % images.size[d] * images.stride[d];
        i /= images.size[d];
    }
    return (char *)images.data + (size_t)at * size_of(type);
}

/* All elements in the order n, c, h, w. */
static std::vector<float> load(const Images &images, cudaDataType type, bool tf32)
{
    std::vector<float> values((size_t)count(images));
    for (int64_t i = 0; i < count(images); i++)
        widen(type, 1, place(images, i, type), &values[(size_t)i]);
    if (tf32)
        round_to_tf32(count(images), values.data());
    return values;
}

static void store(const Convolution &c, const Images &images, const std::vector<float> &values)
{
    for (int64_t i = 0; i < count(images); i++) {
        char *to = place(images, i, c.type);
        float before = 0, value = (float)c.alpha * values[(size_t)i];
        if (c.coarse) {
            narrow(c.type, 1, &value, to); /* once more than it should be */
            widen(c.type, 1, to, &value);
        }
        if (c.beta != 0)
            widen(c.type, 1, to, &before);
        value += (float)c.beta * before + c.noise * value;
        narrow(c.type, 1, &value, to);
    }
}

/* Both ways between one group of one image [c, h, w] and its windows [c, kh, kw, oh, ow]. */
struct Windows {
    const Convolution &c;
    int64_t channels;

    template <class Move> void each(Move &&move) const
    {
        int64_t h = c.x.size[2], w = c.x.size[3], kh = c.weight.size[2], kw = c.weight.size[3], oh = c.y.size[2], ow = c.y.size[3];
        int64_t at = 0;
        for (int64_t i = 0; i < channels * kh * kw; i++)
            for (int64_t row = 0; row < oh; row++)
                for (int64_t col = 0; col < ow; col++, at++) {
                    int64_t r = row * c.stride[0] - c.pad[0] + i / kw % kh * c.dilation[0];
                    int64_t q = col * c.stride[1] - c.pad[1] + i % kw * c.dilation[1];
                    bool inside = r >= 0 && r < h && q >= 0 && q < w;
                    move(at, inside ? (i / kh / kw * h + r) * w + q : -1);
                }
    }
};

void convolve(const Convolution &c)
{
    bool writes_x = c.kind == Convolution::BACKWARD_DATA, writes_weight = c.kind == Convolution::BACKWARD_WEIGHT;
    std::vector<float> none, x = load(c.x, c.type, c.tf32), weight = load(c.weight, c.type, c.tf32), y = load(c.y, c.type, c.tf32);
    std::vector<float> &result = writes_x ? x : writes_weight ? weight : y;
    result.assign(result.size(), 0.0f);
    int64_t channels = c.weight.size[1], groups = c.x.size[1] / channels, outputs = c.y.size[1] / groups;
    int64_t inner = channels * c.weight.size[2] * c.weight.size[3], pixels = c.y.size[2] * c.y.size[3];
    int64_t image = c.x.size[2] * c.x.size[3];
    std::vector<float> columns((size_t)(inner * pixels));
    Windows windows = {c, channels};
    for (int64_t part = 0; part < c.x.size[0] * groups; part++) {
        float *from = x.data() + part * channels * image, *to = y.data() + part * outputs * pixels;
        float *w = weight.data() + part % groups * outputs * inner;
        if (writes_x) {
            columns.assign(columns.size(), 0.0f);
            multiply_rows(true, false, inner, pixels, outputs, 1, w, inner, to, pixels, columns.data(), pixels);
            windows.each([&](int64_t at, int64_t in) {
                if (in >= 0)
                    from[in] += columns[(size_t)at];
            });
            continue;
        }
        windows.each([&](int64_t at, int64_t in) { columns[(size_t)at] = in < 0 ? 0 : from[in]; });
        if (writes_weight)
            multiply_rows(false, true, outputs, inner, pixels, 1, to, pixels, columns.data(), pixels, w, inner);
        else
            multiply_rows(false, false, outputs, pixels, inner, 1, w, inner, columns.data(), pixels, to, pixels);
    }
    store(c, writes_x ? c.x : writes_weight ? c.weight : c.y, result);
}

} // namespace emulation
