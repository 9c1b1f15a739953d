#include "checkpoint/fit.h"

#include "base/kept_error.h"
#include "base/printable.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void shard_complain(shard_complaint *c, const char *format, ...)
{
    if (c->count++ >= SHARD_COMPLAINT_TENSORS)
        return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(c->text[c->count - 1], sizeof c->text[0], format, arguments);
    va_end(arguments);
}

bool shard_fit_shapes(const shard_shape *from, const shard_shape *whole)
{
    bool scalar = whole->ndim == 0 && from->ndim == 1 && from->dim[0] == 1;
    return scalar || shard_shape_equal(from, whole);
}

void shard_fit_compare(shard_fit *fit, const char *name, const shard_tensor *tensor, const shard_shape *shape, shard_dtype dtype,
                       bool convert)
{
    shard_shape whole = shard_tensor_whole_shape(tensor);
    bool floats = shard_dtype_is_float(dtype) && shard_dtype_is_float(tensor->dtype);
    if (!shard_fit_shapes(shape, &whole))
        shard_complain(&fit->shapes, "%s is %s there, %s here", shard_quoted(name), shard_shape_text(shape),
                       shard_shape_text(&whole));
    else if (dtype != tensor->dtype && !(convert && floats)) {
        fit->convertible |= floats;
        shard_complain(&fit->dtypes, "%s is %s there, %s here", shard_quoted(name), shard_dtype_name(dtype),
                       shard_dtype_name(tensor->dtype));
    }
}

/* A text in `bytes`, of which `length` are needed so far. */
typedef struct limited_text {
    char *text;
    size_t bytes, length;
} limited_text;

static void SHARD_PRINTF(2, 3) append(limited_text *to, const char *format, ...)
{
    size_t left = to->length < to->bytes ? to->bytes - to->length : 0;
    va_list arguments;
    va_start(arguments, format);
    to->length += (size_t)vsnprintf(left ? to->text + to->length : NULL, left, format, arguments);
    va_end(arguments);
}

/* Lists all kinds of differences, each with its first `most` tensors. False: the list does not fit. */
static bool list_differences(const shard_fit *fit, int most, char *text, size_t bytes)
{
    const struct {
        const shard_complaint *complaint;
        const char *what;
    } kinds[] = {
        {&fit->missing, "missing there"},   {&fit->unexpected, "not expected here"},  {&fit->shapes, "of another shape"},
        {&fit->dtypes, "of another dtype"}, {&fit->refused, "that cannot be loaded"}, {&fit->placements, "placed otherwise"},
    };
    limited_text list = {text, bytes, 0};
    text[0] = '\0';
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const shard_complaint *c = kinds[i].complaint;
        if (c->count)
            append(&list, "%s%" PRId64 " %s", list.length ? "; " : "", c->count, kinds[i].what);
        for (int j = 0; j < most && j < c->count; j++)
            append(&list, "%s%s", j ? ", " : " (", c->text[j]);
        if (c->count && most)
            append(&list, "%s", c->count > most ? ", ...)" : ")");
    }
    return list.length < bytes;
}

shard_status shard_fit_report(const shard_fit *fit, const char *source)
{
    enum { LEAST = 200 }; /* for the kinds of differences alone */
    char text[SHARD_ERROR_TEXT_BYTES], options[80];
    bool named = fit->missing.count || fit->unexpected.count;
    snprintf(options, sizeof options, "%s%s%s%s%s", named || fit->convertible ? "; options:" : "", named ? " .prefix" : "",
             fit->missing.count ? " .allow_missing" : "", fit->unexpected.count ? " .allow_unexpected" : "",
             fit->convertible ? " .convert" : "");
    /* On other ranks the number of this one precedes the text. */
    size_t others = sizeof "rank 1000000: " + strlen(source) + strlen(" does not fit: ") + strlen(options);
    size_t room = others + LEAST < sizeof text ? sizeof text - others : LEAST;
    for (int most = SHARD_COMPLAINT_TENSORS; !list_differences(fit, most, text, room) && most > 0;)
        most--;
    return *text ? shard_error(SHARD_ERROR_SHAPE, "%s does not fit: %s%s", source, text, options) : SHARD_OK;
}
