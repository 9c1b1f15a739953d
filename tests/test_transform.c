/* Resampling against a plain double reference; the boxes of training and validation. */
#include "support/pictures.h"
#include "support/ranks.h"

#include "transform.h"

#include <math.h>
#include <stdlib.h>

static image some_picture(int height, int width)
{
    image picture = {.height = height, .width = width, .pixels = smooth_picture(height, width, height)};
    for (int i = 0; i < height * width * 3; i += 7) /* and rough */
        picture.pixels[i] = (uint8_t)(random_mix((uint64_t)i) & 255);
    return picture;
}

/* PIL's triangle filter for one place of the result: weights of all places of the picture. */
static void reference_weights(double start, double span, int64_t size, int64_t place, int64_t length, double *weights)
{
    double scale = span / (double)size, support = scale > 1 ? scale : 1, centre = start + ((double)place + 0.5) * scale, sum = 0;
    for (int64_t i = 0; i < length; i++) {
        double distance = fabs((double)i + 0.5 - centre) / support;
        weights[i] = distance < 1 ? 1 - distance : 0;
        sum += weights[i];
    }
    for (int64_t i = 0; i < length; i++)
        weights[i] = sum > 0 ? weights[i] / sum : i == (centre < 0 ? 0 : length - 1);
}

static double reference(const image *picture, image_box box, int64_t size, int64_t y, int64_t x, int64_t c)
{
    double rows[200], columns[200], sum = 0;
    reference_weights(box.top, box.height, size, y, picture->height, rows);
    reference_weights(box.left, box.width, size, x, picture->width, columns);
    for (int64_t i = 0; i < picture->height; i++)
        for (int64_t j = 0; j < picture->width; j++)
            sum += rows[i] * columns[j] * picture->pixels[(i * picture->width + j) * 3 + c];
    return sum;
}

static const struct {
    int height, width, size;
    image_box box;
} cases[] = {
    {40, 60, 16, {0, 0, 60, 40}},             /* smaller */
    {20, 30, 48, {0, 0, 30, 20}},             /* larger */
    {33, 47, 20, {5, 3, 31, 17}},             /* a part, one direction each way */
    {50, 50, 24, {3.25, 7.5, 30.125, 21.75}}, /* not on whole pixels */
    {32, 32, 32, {-3.1, 2.2, 36, 35}},        /* beyond two borders */
    {9, 200, 12, {-40, -5, 290, 19}},         /* far beyond, and a narrow picture */
    {1, 1, 5, {0, 0, 1, 1}},
    {1, 7, 1, {1, 0, 3, 1}},
};

START_TEST(test_resample)
{
    int64_t size = cases[_i].size;
    image picture = some_picture(cases[_i].height, cases[_i].width);
    uint8_t *out = malloc((size_t)(size * size) * 3);
    resampler scratch = {0};
    for (int flip = 0; flip < 2; flip++) {
        check_ok(resample(&picture, cases[_i].box, size, flip, out, &scratch));
        for (int64_t y = 0; y < size; y++)
            for (int64_t x = 0; x < size; x++)
                for (int64_t c = 0; c < 3; c++) {
                    double expected = reference(&picture, cases[_i].box, size, y, flip ? size - 1 - x : x, c);
                    ck_assert_double_eq_tol(out[(y * size + x) * 3 + c], expected, 0.5 + 1e-3); /* rounded */
                }
    }
    resampler_free(&scratch);
    image_free(&picture);
    free(out);
}
END_TEST

START_TEST(test_identity)
{
    enum { SIZE = 31 };
    static uint8_t out[SIZE * SIZE * 3];
    image picture = some_picture(SIZE, SIZE);
    resampler scratch = {0};
    check_ok(resample(&picture, (image_box){0, 0, SIZE, SIZE}, SIZE, false, out, &scratch));
    ck_assert_mem_eq(out, picture.pixels, sizeof out);
    resampler_free(&scratch);
    image_free(&picture);
}
END_TEST

/* The level nearest to a normalized number, or the first or last one. */
START_TEST(test_level)
{
    for (int c = 0; c < 3; c++) {
        for (int level = 0; level < 256; level++)
            for (int side = -1; side <= 1; side++)
                ck_assert_int_eq(image_level(c, ((level + 0.4 * side) / 255 - image_mean[c]) / image_deviation[c]), level);
        ck_assert_int_eq(image_level(c, -3), 0);
        ck_assert_int_eq(image_level(c, 3), 255);
    }
}
END_TEST

START_TEST(test_refuses_boxes)
{
    uint8_t out[12];
    image picture = some_picture(4, 4);
    resampler scratch = {0};
    static const image_box boxes[] = {{0, 0, 0, 4}, {0, 0, 4, -1}, {NAN, 0, 4, 4}, {0, 0, INFINITY, 4}};
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(resample(&picture, boxes[i], 2, false, out, &scratch), SHARD_ERROR_ARGUMENT);
        check_error(SHARD_ERROR_ARGUMENT, "resample: a box of *");
    }
    ck_assert_int_eq(resample(&picture, (image_box){0, 0, 4, 4}, 0, false, out, &scratch), SHARD_ERROR_ARGUMENT);
    check_error(SHARD_ERROR_ARGUMENT, "resample: a box of *");
    resampler_free(&scratch);
    image_free(&picture);
}
END_TEST

START_TEST(test_random_crop)
{
    const augmentation augment = {.crop_scale = 0.08};
    double least = 1, greatest = 0, lefts = 0;
    enum { TRIES = 4000 };
    for (uint64_t i = 0; i < TRIES; i++) {
        random_stream random = random_start(1, 2, i), again = random;
        image_box box = training_box(375, 500, &augment, &random), same = training_box(375, 500, &augment, &again);
        ck_assert_mem_eq(&box, &same, sizeof box);
        ck_assert(box.left >= 0 && box.top >= 0 && box.left + box.width <= 500 && box.top + box.height <= 375);
        double ratio = box.width / box.height, part = box.width * box.height / (375 * 500);
        ck_assert(ratio > 0.74 && ratio < 1.35);
        least = fmin(least, part);
        greatest = fmax(greatest, part);
        lefts += box.left / fmax(1, 500 - box.width);
    }
    ck_assert_double_eq_tol(least, 0.08, 0.004);
    ck_assert(greatest > 0.95 && greatest <= 1);
    ck_assert_double_eq_tol(lefts / TRIES, 0.5, 0.02);
}
END_TEST

/* No crop of such a ratio fits: the largest in the middle, as torchvision takes. */
START_TEST(test_crop_of_narrow_pictures)
{
    const augmentation augment = {.crop_scale = 0.9};
    random_stream random = random_start(1, 1, 1);
    image_box box = training_box(10, 100, &augment, &random);
    ck_assert(box.left == 43 && box.top == 0 && box.width == 13 && box.height == 10);
    box = training_box(100, 10, &augment, &random);
    ck_assert(box.left == 0 && box.top == 43 && box.width == 10 && box.height == 13);
    box = training_box(1, 1, &augment, &random);
    ck_assert(box.left == 0 && box.top == 0 && box.width == 1 && box.height == 1);
}
END_TEST

START_TEST(test_shift)
{
    const augmentation augment = {.crop_scale = 0.08, .shift = 0.1};
    double most = 0;
    for (uint64_t i = 0; i < 1000; i++) {
        random_stream random = random_start(3, 0, i);
        image_box box = training_box(50, 100, &augment, &random);
        double edges[] = {box.left / 100, (box.left + box.width) / 100 - 1, box.top / 50, (box.top + box.height) / 50 - 1};
        for (int k = 0; k < 4; k++) {
            ck_assert_double_le(fabs(edges[k]), 0.1 + 1e-12);
            most = fmax(most, fabs(edges[k]));
        }
    }
    ck_assert_double_gt(most, 0.099);
    image_box box = validation_box(50, 100, 32, &augment);
    ck_assert(box.left == 25 && box.top == 0 && box.width == 50 && box.height == 50);
}
END_TEST

/* The largest square in the middle, in training and in validation; --shift moves its edges by parts of its side. */
START_TEST(test_square)
{
    static const struct {
        int height, width;
        image_box box;
    } sizes[] = {{50, 101, {25, 0, 50, 50}}, {90, 60, {0, 15, 60, 60}}, {32, 32, {0, 0, 32, 32}}};
    for (int i = 0; i < 3; i++) {
        augmentation augment = {.crop_scale = 0.08, .square = true};
        image_box expected = sizes[i].box, box = validation_box(sizes[i].height, sizes[i].width, 24, &augment);
        ck_assert_mem_eq(&box, &expected, sizeof box);
        double most = 0;
        for (uint64_t k = 0; k < 1000; k++) {
            random_stream random = random_start(3, 1, k);
            augment.shift = 0;
            box = training_box(sizes[i].height, sizes[i].width, &augment, &random);
            ck_assert_mem_eq(&box, &expected, sizeof box);
            augment.shift = 0.1;
            box = training_box(sizes[i].height, sizes[i].width, &augment, &random);
            double edges[] = {box.left - expected.left, box.left + box.width - expected.left - expected.width,
                              box.top - expected.top, box.top + box.height - expected.top - expected.height};
            for (int edge = 0; edge < 4; edge++)
                most = fmax(most, fabs(edges[edge]) / expected.width);
        }
        ck_assert(most > 0.099 && most <= 0.1 + 1e-12);
    }
}
END_TEST

/* torchvision: 500 x 375 is resized to 341 x 256, and cropped from (58, 16); 603 x 375 to 411 x 256, from (94, 16). */
START_TEST(test_validation_box)
{
    const augmentation augment = {.crop_scale = 0.08};
    image_box box = validation_box(375, 500, 224, &augment);
    ck_assert_double_eq_tol(box.left, 58 * 500 / 341.0, 1e-9);
    ck_assert_double_eq_tol(box.top, 16 * 375 / 256.0, 1e-9);
    ck_assert_double_eq_tol(box.width, 224 * 500 / 341.0, 1e-9);
    ck_assert_double_eq_tol(box.height, 224 * 375 / 256.0, 1e-9);
    box = validation_box(375, 603, 224, &augment);
    ck_assert_double_eq_tol(box.left, 94 * 603 / 411.0, 1e-9);
    box = validation_box(500, 375, 224, &augment);
    ck_assert_double_eq_tol(box.top, 58 * 500 / 341.0, 1e-9);
    ck_assert_double_eq_tol(box.left, 16 * 375 / 256.0, 1e-9);
}
END_TEST

START_TEST(test_eighths)
{
    static const struct {
        double width, height;
        int eighths;
    } boxes[] = {{100, 100, 8}, {224, 224, 8}, {447, 900, 8}, {448, 448, 4}, {900, 896, 2}, {1792, 1800, 1}, {9000, 9000, 1}};
    for (int i = 0; i < 7; i++)
        ck_assert_int_eq(box_eighths((image_box){5, 5, boxes[i].width, boxes[i].height}, 224), boxes[i].eighths);
}
END_TEST

/* A JPEG that is decoded at a part of its size gives about the same numbers. */
START_TEST(test_scaled_decoding)
{
    enum { SIZE = 30 };
    static uint8_t whole[SIZE * SIZE * 3], part[SIZE * SIZE * 3];
    uint8_t *pixels = smooth_picture(251, 303, 6);
    bytes content = jpeg_bytes(pixels, 251, 303, (jpeg_kind){.channels = 3});
    image_file file = {.path = "some/picture", .bytes = content.data, .size = content.size};
    image picture = {0};
    resampler scratch = {0};
    image_box box = {20, 31, 180, 140};
    ck_assert_int_eq(box_eighths(box, SIZE), 2);
    check_ok(image_decode(&file, 8, &picture));
    check_ok(resample(&picture, box_in_decoded(box, 251, 303, &picture), SIZE, true, whole, &scratch));
    check_ok(image_decode(&file, 2, &picture));
    check_ok(resample(&picture, box_in_decoded(box, 251, 303, &picture), SIZE, true, part, &scratch));
    for (int i = 0; i < SIZE * SIZE * 3; i++)
        ck_assert_double_eq_tol(whole[i], part[i], 6);
    resampler_free(&scratch);
    image_free(&picture);
    free(pixels);
    free(content.data);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("transform");
    TCase *resampling = test_case(suite, "resampling");
    tcase_add_loop_test(resampling, test_resample, 0, sizeof cases / sizeof *cases);
    tcase_add_test(resampling, test_identity);
    tcase_add_test(resampling, test_level);
    tcase_add_test(resampling, test_refuses_boxes);
    tcase_add_test(resampling, test_scaled_decoding);
    TCase *boxes = test_case(suite, "boxes");
    tcase_add_test(boxes, test_random_crop);
    tcase_add_test(boxes, test_crop_of_narrow_pictures);
    tcase_add_test(boxes, test_shift);
    tcase_add_test(boxes, test_square);
    tcase_add_test(boxes, test_validation_box);
    tcase_add_test(boxes, test_eighths);
    return test_run(suite);
}
