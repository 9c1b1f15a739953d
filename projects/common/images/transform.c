/*
 * From a picture to the square that a network reads. Resampling is separable; each row of the result is computed by
 * itself: first the picture's rows are summed with weights into one row of floats (contiguous, which the compiler
 * vectorizes), then that row's pixels into the result's.
 */
#include "transform.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

const double image_mean[3] = {0.485, 0.456, 0.406};
const double image_deviation[3] = {0.229, 0.224, 0.225};

#define MAX_SIZE 65536

static double clamp(double value, double low, double high)
{
    return value < low ? low : value > high ? high : value;
}

uint8_t image_level(int channel, double normalized)
{
    return (uint8_t)lrint(clamp(255 * (image_mean[channel] + image_deviation[channel] * normalized), 0, 255));
}

static image_box centred_box(int64_t height, int64_t width, double box_height, double box_width)
{
    return (image_box){.left = floor(((double)width - box_width) / 2),
                       .top = floor(((double)height - box_height) / 2),
                       .width = box_width,
                       .height = box_height};
}

static image_box random_crop(int64_t height, int64_t width, double least_scale, random_stream *random)
{
    const double least_ratio = 3.0 / 4, greatest_ratio = 4.0 / 3;
    double h = (double)height, w = (double)width;
    for (int attempt = 0; attempt < 10; attempt++) {
        double area = h * w * random_between(random, least_scale, 1);
        double ratio = exp(random_between(random, log(least_ratio), log(greatest_ratio)));
        double box_width = rint(sqrt(area * ratio)), box_height = rint(sqrt(area / ratio));
        if (box_width < 1 || box_width > w || box_height < 1 || box_height > h)
            continue;
        double top = floor(random_uniform(random) * (h - box_height + 1));
        double left = floor(random_uniform(random) * (w - box_width + 1));
        return (image_box){.left = left, .top = top, .width = box_width, .height = box_height};
    }
    if (w / h < least_ratio)
        return centred_box(height, width, fmax(1, rint(w / least_ratio)), w);
    if (w / h > greatest_ratio)
        return centred_box(height, width, h, fmax(1, rint(h * greatest_ratio)));
    return centred_box(height, width, h, w);
}

static image_box largest_square(int64_t height, int64_t width)
{
    double shorter = (double)(height < width ? height : width);
    return centred_box(height, width, shorter, shorter);
}

static image_box shifted_edges(image_box box, double shift, random_stream *random)
{
    double left = random_between(random, -shift, shift) * box.width + box.left;
    double right = random_between(random, -shift, shift) * box.width + box.left + box.width;
    double top = random_between(random, -shift, shift) * box.height + box.top;
    double bottom = random_between(random, -shift, shift) * box.height + box.top + box.height;
    return (image_box){.left = left, .top = top, .width = right - left, .height = bottom - top};
}

image_box training_box(int64_t height, int64_t width, const augmentation *augment, random_stream *random)
{
    if (augment->square)
        return shifted_edges(largest_square(height, width), augment->shift, random);
    if (augment->shift > 0)
        return shifted_edges((image_box){.width = (double)width, .height = (double)height}, augment->shift, random);
    return random_crop(height, width, augment->crop_scale, random);
}

image_box validation_box(int64_t height, int64_t width, int64_t size, const augmentation *augment)
{
    if (augment->square || augment->shift > 0)
        return largest_square(height, width);
    /* torchvision rounds the resized sizes and the crop's corner to whole pixels. */
    double resized = floor((double)size * 256 / 224);
    double resized_height = height < width ? resized : floor(resized * (double)height / (double)width);
    double resized_width = height < width ? floor(resized * (double)width / (double)height) : resized;
    double y = (double)height / resized_height, x = (double)width / resized_width;
    return (image_box){.left = rint((resized_width - (double)size) / 2) * x,
                       .top = rint((resized_height - (double)size) / 2) * y,
                       .width = (double)size * x,
                       .height = (double)size * y};
}

int box_eighths(image_box box, int64_t size)
{
    double shorter = fmin(box.width, box.height);
    for (int eighths = 1; eighths < 8; eighths *= 2)
        if (shorter * eighths >= 8 * (double)size)
            return eighths;
    return 8;
}

image_box box_in_decoded(image_box box, int64_t height, int64_t width, const image *decoded)
{
    double x = (double)decoded->width / (double)width, y = (double)decoded->height / (double)height;
    return (image_box){.left = box.left * x, .top = box.top * y, .width = box.width * x, .height = box.height * y};
}

/* For each position of the result, the positions of the picture and their weights. */
typedef struct taps {
    int64_t most;   /* of one position */
    int64_t *first; /* [size] */
    int64_t *count; /* [size], 1 to most */
    float *weight;  /* [size, most] */
} taps;

static double filter_support(double span, int64_t size)
{
    return fmax(1, span / (double)size);
}

static int64_t most_taps(double span, int64_t size, int64_t length)
{
    int64_t most = (int64_t)ceil(filter_support(span, size)) * 2 + 1;
    return most < length ? most : length;
}

static int64_t tap_bytes(int64_t size, int64_t most)
{
    int64_t weights = (size * most * (int64_t)sizeof(float) + 7) / 8 * 8;
    return size * 2 * (int64_t)sizeof(int64_t) + weights;
}

static taps place_taps(char *memory, int64_t size, int64_t most)
{
    taps table = {.most = most, .first = (int64_t *)memory};
    table.count = table.first + size;
    table.weight = (float *)(table.count + size);
    return table;
}

/* The triangle over [centre - support, centre + support], for positions 0 to length - 1. */
static void fill_taps(taps *table, double start, double span, int64_t size, int64_t length, bool backwards)
{
    double step = span / (double)size, support = filter_support(span, size);
    for (int64_t i = 0; i < size; i++) {
        double centre = start + ((double)(backwards ? size - 1 - i : i) + 0.5) * step;
        int64_t first = (int64_t)clamp(floor(centre - support + 0.5), 0, (double)length - 1);
        int64_t last = (int64_t)clamp(floor(centre + support + 0.5), (double)first + 1, (double)length);
        int64_t count = last - first;
        double sum = 0;
        for (int64_t k = 0; k < count; k++)
            sum += fmax(0, 1 - fabs((double)(first + k) + 0.5 - centre) / support);
        for (int64_t k = 0; k < count; k++) {
            double weight = fmax(0, 1 - fabs((double)(first + k) + 0.5 - centre) / support);
            table->weight[i * table->most + k] = (float)(sum > 0 ? weight / sum : k == 0);
        }
        table->first[i] = first;
        table->count[i] = sum > 0 ? count : 1;
    }
}

/* row[0 ... values-1] = the weighted sum of `count` rows that are `stride` bytes apart. */
static void weigh_rows(const uint8_t *rows, int64_t stride, const float *weight, int64_t count, int64_t values, float *row)
{
    for (int64_t i = 0; i < values; i++)
        row[i] = weight[0] * (float)rows[i];
    for (int64_t k = 1; k < count; k++) {
        const uint8_t *next = rows + k * stride;
        for (int64_t i = 0; i < values; i++)
            row[i] += weight[k] * (float)next[i];
    }
}

/* Computes one pixel and one float more, which is ignored: row has a float after its last pixel. */
typedef float pixel __attribute__((vector_size(16)));

static inline pixel load_pixel(const float *from)
{
    pixel value;
    memcpy(&value, from, sizeof value);
    return value;
}

/* row is float [.., 3] from the picture's column `origin` on. */
static void weigh_columns(const float *row, int64_t origin, const taps *columns, int64_t size, uint8_t *out)
{
    for (int64_t x = 0; x < size; x++) {
        const float *from = row + (columns->first[x] - origin) * 3, *weight = columns->weight + x * columns->most;
        pixel sum = load_pixel(from) * weight[0];
        for (int64_t k = 1; k < columns->count[x]; k++)
            sum += load_pixel(from + k * 3) * weight[k];
        for (int c = 0; c < 3; c++) /* weights add up to 1, but for rounding: below 255.5 */
            out[x * 3 + c] = (uint8_t)(sum[c] + 0.5f);
    }
}

static shard_status reserve(resampler *scratch, int64_t size)
{
    if ((size_t)size <= scratch->capacity)
        return SHARD_OK;
    resampler_free(scratch);
    scratch->memory = malloc((size_t)size);
    if (!scratch->memory)
        return shard_error(SHARD_ERROR_MEMORY, "no memory for resampling: %" PRId64 " bytes", size);
    scratch->capacity = (size_t)size;
    return SHARD_OK;
}

void resampler_free(resampler *scratch)
{
    free(scratch->memory);
    *scratch = (resampler){0};
}

shard_status resample(const image *picture, image_box box, int64_t size, bool flip, uint8_t *out, resampler *scratch)
{
    if (size < 1 || size > MAX_SIZE || !(box.width > 0) || !(box.height > 0) ||
        !isfinite(box.left + box.width + box.top + box.height))
        return shard_error(SHARD_ERROR_ARGUMENT, "resample: a box of %g x %g at (%g, %g) to %" PRId64 " pixels", box.width,
                           box.height, box.left, box.top, size);
    int64_t most_rows = most_taps(box.height, size, picture->height);
    int64_t most_columns = most_taps(box.width, size, picture->width);
    int64_t rows_bytes = tap_bytes(size, most_rows), columns_bytes = tap_bytes(size, most_columns);
    int64_t row_bytes = (picture->width * 3 + 1) * (int64_t)sizeof(float);
    shard_status status = reserve(scratch, rows_bytes + columns_bytes + row_bytes);
    if (status != SHARD_OK)
        return status;
    char *memory = scratch->memory;
    taps rows = place_taps(memory, size, most_rows), columns = place_taps(memory + rows_bytes, size, most_columns);
    float *row = (float *)(memory + rows_bytes + columns_bytes);
    fill_taps(&rows, box.top, box.height, size, picture->height, false);
    fill_taps(&columns, box.left, box.width, size, picture->width, flip);

    int64_t leftmost = columns.first[flip ? size - 1 : 0], rightmost_place = flip ? 0 : size - 1;
    int64_t used = columns.first[rightmost_place] + columns.count[rightmost_place] - leftmost;
    row[used * 3] = 0;
    for (int64_t y = 0; y < size; y++) {
        const uint8_t *from = picture->pixels + (rows.first[y] * picture->width + leftmost) * 3;
        weigh_rows(from, picture->width * 3, rows.weight + y * rows.most, rows.count[y], used * 3, row);
        weigh_columns(row, leftmost, &columns, size, out + y * size * 3);
    }
    return SHARD_OK;
}
