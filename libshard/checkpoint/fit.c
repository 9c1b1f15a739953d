#include "checkpoint/fit.h"

#include "checkpoint/safetensors.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void shard_complain(shard_complaint *c, const char *format, ...)
{
    size_t used = strlen(c->text);
    if (c->count++ < 3 && used < sizeof c->text - 60) {
        used += (size_t)snprintf(c->text + used, sizeof c->text - used, used ? ", " : "");
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(c->text + used, sizeof c->text - used, format, arguments);
        va_end(arguments);
    }
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

shard_status shard_fit_report(const shard_fit *fit, const char *source)
{
    const struct {
        const shard_complaint *complaint;
        const char *what;
    } kinds[] = {
        {&fit->missing, "missing there"},   {&fit->unexpected, "not expected here"},  {&fit->shapes, "of another shape"},
        {&fit->dtypes, "of another dtype"}, {&fit->refused, "that cannot be loaded"}, {&fit->placements, "placed otherwise"},
    };
    char text[400] = "";
    size_t used = 0;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const shard_complaint *c = kinds[i].complaint;
        if (c->count && used < sizeof text)
            used += (size_t)snprintf(text + used, sizeof text - used, "%s%" PRId64 " %s (%s%s)", used ? "; " : "", c->count,
                                     kinds[i].what, c->text, c->count > 3 ? ", ..." : "");
    }
    if (!used)
        return SHARD_OK;
    bool named = fit->missing.count || fit->unexpected.count;
    return shard_error(SHARD_ERROR_SHAPE, "%s does not fit: %s%s%s%s%s%s", source, text,
                       named || fit->convertible ? "; options:" : "", named ? " .prefix" : "",
                       fit->missing.count ? " .allow_missing" : "", fit->unexpected.count ? " .allow_unexpected" : "",
                       fit->convertible ? " .convert" : "");
}
