#include "support/golden_model.h"

#include "support/check.h"
#include "support/host.h"
#include "support/job.h"

#include <shard/shard.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static FILE *open_file(const golden_model *of, const char *kind)
{
    char path[64];
    snprintf(path, sizeof path, "golden/%s_%s.txt", of->name, kind);
    FILE *file = fopen(test_file(path), "r");
    ck_assert_msg(file != NULL, "%s is missing", path);
    return file;
}

static void check_no_error(void)
{
    ck_assert_msg(shard_last_status() == SHARD_OK, "%s", shard_last_error());
}

/* ---- names ---- */

static void check_entry(const shard_tensors *state, char *line)
{
    char *rest, *kind = strtok_r(line, " \n", &rest), *name = strtok_r(NULL, " \n", &rest), *size;
    shard_tensor *tensor = shard_tensors_find(state, name);
    ck_assert_msg(tensor != NULL, "%s is missing", name);
    ck_assert_msg(shard_requires_grad(tensor) == (strcmp(kind, "parameter") == 0), "%s is no %s", name, kind);
    shard_shape shape = shard_tensor_shape(tensor);
    int ndim = 0;
    for (; (size = strtok_r(NULL, " \n", &rest)); ndim++)
        ck_assert_msg(ndim < shape.ndim && shape.dim[ndim] == atoll(size), "size %d of %s is not %s", ndim, name, size);
    ck_assert_msg(ndim == shape.ndim, "%s has %d dimensions, not %d", name, shape.ndim, ndim);
}

void check_golden_names(const golden_model *of, shard_module *model)
{
    shard_tensors *state = shard_state_dict(model);
    check_no_error();
    FILE *file = open_file(of, "names");
    char line[256];
    int64_t count = 0;
    size_t length = strlen(of->arch);
    while (fgets(line, sizeof line, file))
        if (strncmp(line, of->arch, length) == 0 && line[length] == ' ') {
            check_entry(state, line + length + 1);
            count++;
        }
    fclose(file);
    ck_assert_int_gt(count, 100);
    ck_assert_int_eq(shard_tensors_count(state), count);
    shard_tensors_destroy(state);
}

/* ---- made-up values ---- */

double golden_number(uint32_t seed, uint32_t index)
{
    uint32_t x = index + 1 + 1000003 * (seed + 1);
    x *= 2654435761u;
    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    x *= 3266489917u;
    x ^= x >> 16;
    return x / 4294967296.0;
}

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && strcmp(text + length - tail, end) == 0;
}

static void fill(const golden_model *of, const char *name, uint32_t seed, shard_tensor *tensor)
{
    if (shard_tensor_dtype(tensor) == SHARD_INT64)
        return;
    int64_t count = shard_numel(tensor);
    float *values = malloc((size_t)count * sizeof *values);
    double low = -0.5, high = 0.5;
    if (!of->range(of, name, shard_tensor_shape(tensor), &low, &high)) {
        if (ends_with(name, "bn3.weight"))
            low = 0.2, high = 0.4;
        else if (ends_with(name, "weight") || ends_with(name, "running_var"))
            low = 0.5, high = 1.5;
    }
    for (int64_t i = 0; i < count; i++)
        values[i] = (float)(low + (high - low) * golden_number(seed, (uint32_t)i));
    ck_assert_int_eq(shard_copy_from_host(tensor, values, (size_t)count * sizeof *values), SHARD_OK);
    free(values);
}

/* Seeds go by the order of PyTorch's state dict. */
static void fill_all(const golden_model *of, const shard_tensors *state)
{
    FILE *file = open_file(of, "names");
    char line[256], arch[32], kind[32], name[128];
    uint32_t seed = 0;
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "%31s %31s %127s", arch, kind, name) == 3 && strcmp(arch, of->arch) == 0)
            fill(of, name, seed++, shard_tensors_find(state, name));
    fclose(file);
}

static shard_tensor *make_images(const golden_model *of)
{
    int64_t count = of->images * of->side * of->side * 3;
    float *pixels = malloc((size_t)count * sizeof *pixels);
    for (int64_t i = 0; i < count; i++)
        pixels[i] = (float)(2 * golden_number(9999, (uint32_t)i) - 1);
    shard_tensor *images = shard_from_host(pixels, SHARD_SHAPE(of->images, of->side, of->side, 3));
    free(pixels);
    return images;
}

static shard_tensor *make_labels(const golden_model *of)
{
    int64_t labels[16];
    ck_assert(of->images <= 16);
    for (int64_t i = 0; i < of->images; i++)
        labels[i] = i * of->stride % of->outputs;
    return shard_from_host(labels, SHARD_SHAPE(of->images), .dtype = SHARD_INT64);
}

/* ---- the file's values ---- */

void check_golden_number(const char *what, double got, double expected, double tolerance, double scale)
{
    ck_assert_msg(fabs(got - expected) <= tolerance * scale, "%s is %.9g, PyTorch's is %.9g", what, got, expected);
}

/* The numbers behind a line's name, or NULL if the line is another. */
static char *after(char *line, const char *arch, const char *kind)
{
    char begin[64];
    snprintf(begin, sizeof begin, "%s %s ", arch, kind);
    return strncmp(line, begin, strlen(begin)) == 0 ? line + strlen(begin) : NULL;
}

static void check_outputs(const char *what, shard_tensor *outputs, char *numbers, double tolerance)
{
    float *values = host_copy(outputs);
    for (int64_t i = 0; i < shard_numel(outputs); i++) {
        double expected = strtod(numbers, &numbers);
        check_golden_number(what, (double)values[i], expected, tolerance, 1 + fabs(expected));
    }
    free(values);
}

/* The sum of the elements, or of their magnitudes, and the inner product with a made-up vector, which elements in another
 * order or of another sign do not have. */
typedef struct sums {
    double sum, projection, norm;
} sums;

static sums sums_of(shard_tensor *tensor, bool magnitudes)
{
    sums of = {0};
    double squares = 0;
    double *values = values_of(tensor);
    for (int64_t i = 0; i < shard_numel(tensor); i++) {
        of.sum += magnitudes ? fabs(values[i]) : values[i];
        of.projection += values[i] * (2 * golden_number(7777, (uint32_t)i) - 1);
        squares += values[i] * values[i];
    }
    of.norm = sqrt(squares);
    free(values);
    return of;
}

static void check_sums(const char *name, sums got, char *numbers, double tolerance, double of_norm, double scale)
{
    double sum = strtod(numbers, &numbers), projection = strtod(numbers, &numbers);
    char what[192];
    check_golden_number(name, got.sum, sum, tolerance, scale + fabs(sum));
    snprintf(what, sizeof what, "the projection of %s", name);
    check_golden_number(what, got.projection, projection, of_norm, scale + got.norm);
    ck_assert_msg(*numbers == '\n', "%s has not two numbers", name);
}

/* 1 if the line is the architecture's. */
static int check_line(const char *arch, char *line, const shard_tensors *state, shard_tensor *evaluated, shard_tensor *trained,
                      shard_tensor *loss)
{
    char *rest, name[128];
    int end; /* of the name */
    if ((rest = after(line, arch, "evaluation")))
        check_outputs("an output of evaluation", evaluated, rest, 2e-5);
    else if ((rest = after(line, arch, "training")))
        check_outputs("an output of training", trained, rest, 2e-4);
    else if ((rest = after(line, arch, "loss")))
        check_golden_number("the loss", shard_item(loss), strtod(rest, NULL), 1e-4, 1);
    else if ((rest = after(line, arch, "gradient")) && sscanf(rest, "%127s%n", name, &end) == 1)
        /* By units that are about 0, PyTorch's float32 is up to 5e-3 of the sum and 2.1e-2 of the norm away from its float64. */
        check_sums(name, sums_of(shard_grad(shard_tensors_find(state, name)), true), rest + end, 1e-2, 5e-2, 1e-4);
    else if ((rest = after(line, arch, "buffer")) && sscanf(rest, "%127s%n", name, &end) == 1)
        check_sums(name, sums_of(shard_tensors_find(state, name), false), rest + end, 2e-5, 2e-5, 1);
    else
        return 0;
    return 1;
}

void check_golden_values(const golden_model *of, shard_module *model)
{
    shard_tensors *state = shard_state_dict(model);
    check_no_error();
    fill_all(of, state);
    SHARD_SCOPE
    {
        shard_tensor *images = make_images(of);
        shard_module_set_training(model, false);
        shard_tensor *evaluated = shard_forward(model, images);
        shard_module_set_training(model, true);
        shard_tensor *trained = shard_forward(model, images);
        shard_tensor *loss = shard_cross_entropy(trained, make_labels(of));
        shard_backward(loss);
        check_no_error();
        FILE *file = open_file(of, "values");
        static char line[8192];
        int64_t lines = 0, frozen = 0;
        while (fgets(line, sizeof line, file))
            lines += check_line(of->arch, line, state, evaluated, trained, loss);
        fclose(file);
        for (int64_t i = 0; i < shard_tensors_count(state); i++)
            frozen += strcmp(shard_tensors_name(state, i), "features.weight") == 0;
        ck_assert_int_eq(lines, 3 + shard_tensors_count(state) - frozen);
    }
    shard_tensors_destroy(state);
}
