/* Modules: a type, and named parameters, buffers and children. */
#include "nn/nn.h"

#include "comm/function.h"

#include <stdlib.h>
#include <string.h>

typedef struct named_child {
    char *name;
    shard_module *module;
} named_child;

typedef struct named_value {
    char *name;
    shard_tensor *tensor;
    bool is_parameter;
} named_value;

struct shard_module {
    const shard_module_type *type;
    void *data;
    bool training;
    shard_module *parent; /* destroys this module; NULL: the caller does */
    named_child *children;
    int64_t child_count, child_capacity;
    named_value *values;
    int64_t value_count, value_capacity;
};

const char *shard_module_type_name(const shard_module *module)
{
    return module->type->name ? module->type->name : "a module without a name";
}

/* ---- life ---- */

shard_module *shard_module_create(const shard_module_type *type, void *data)
{
    shard_module *module = type ? shard_calloc(1, sizeof *module) : NULL;
    if (module) {
        *module = (shard_module){.type = type, .data = data, .training = true};
        return module;
    }
    if (!type)
        shard_null_argument("shard_module_create", "type");
    /* type->destroy frees data also after an error. */
    shard_module orphan = {.type = type, .data = data};
    if (type && type->destroy)
        type->destroy(&orphan);
    return NULL;
}

shard_module *shard_module_make(const shard_module_type *type, const void *data, size_t bytes)
{
    void *copy = shard_calloc(1, bytes);
    if (!copy)
        return NULL;
    memcpy(copy, data, bytes);
    return shard_module_create(type, copy);
}

static void destroy(shard_module *module)
{
    for (int64_t i = 0; i < module->child_count; i++) {
        destroy(module->children[i].module);
        free(module->children[i].name);
    }
    for (int64_t i = 0; i < module->value_count; i++) {
        shard_tensor_unref(module->values[i].tensor);
        free(module->values[i].name);
    }
    if (module->type->destroy)
        module->type->destroy(module);
    free(module->children);
    free(module->values);
    free(module);
}

void shard_module_destroy(shard_module *module)
{
    if (module && module->parent)
        shard_error(SHARD_ERROR_ARGUMENT, "shard_module_destroy: a %s that is a child of a %s, which destroys it",
                    shard_module_type_name(module), shard_module_type_name(module->parent));
    else if (module)
        destroy(module);
}

bool shard_module_has_parent(const shard_module *module)
{
    return module->parent != NULL;
}

void shard_module_abandon(shard_module *module)
{
    if (module && !module->parent)
        shard_module_destroy(module);
}

shard_module *shard_module_checked(shard_module *module, shard_status status)
{
    if (status == SHARD_OK)
        return module;
    shard_module_destroy(module);
    return NULL;
}

void shard_module_free(shard_module *module)
{
    free(module->data);
}

void *shard_module_data(const shard_module *module)
{
    return module ? module->data : NULL;
}

const shard_module_type *shard_module_get_type(const shard_module *module)
{
    return module ? module->type : NULL;
}

/* ---- properties ---- */

static shard_status check_name(const char *function, const shard_module *module, const char *name)
{
    const char *type = shard_module_type_name(module), *taken = NULL;
    if (!*name || strchr(name, '.'))
        return shard_error(SHARD_ERROR_ARGUMENT, "%s: \"%s\" is not a valid name in a %s: it is empty or has a dot", function,
                           name, type);
    for (int64_t i = 0; i < module->child_count; i++)
        taken = strcmp(module->children[i].name, name) == 0 ? "child" : taken;
    for (int64_t i = 0; i < module->value_count; i++)
        taken = strcmp(module->values[i].name, name) == 0 ? "tensor" : taken;
    if (!taken)
        return SHARD_OK;
    return shard_error(SHARD_ERROR_ARGUMENT, "%s: the %s has a %s \"%s\" already: take another name", function, type, taken,
                       name);
}

/* Whether the tensor can be a parameter or buffer of that name. */
static shard_status check_value(const char *function, const shard_module *module, const char *name, const shard_tensor *tensor,
                                bool is_parameter)
{
    const char *type = shard_module_type_name(module);
    if (tensor->history)
        return shard_error(SHARD_ERROR_ARGUMENT, "%s: \"%s\" of a %s is the result of an operation, not a leaf: shard_detach it",
                           function, name, type);
    if (is_parameter && !shard_dtype_is_float(tensor->dtype))
        return shard_error(SHARD_ERROR_ARGUMENT,
                           "%s: parameter \"%s\" of a %s is %s, which has no gradient; a floating dtype is needed, or "
                           "shard_module_add_buffer",
                           function, name, type, shard_dtype_name(tensor->dtype));
    return SHARD_OK;
}

/* A tensor of the caller's values has no leaf yet. */
static shard_status take_value(shard_tensor *tensor, bool is_parameter)
{
    if (is_parameter && !shard_make_leaf(tensor))
        return shard_last_status();
    tensor->requires_grad = is_parameter;
    shard_storage_become(tensor->storage, SHARD_MEMORY_PARAMETERS);
    return SHARD_OK;
}

static shard_status add_value(shard_module *module, const char *name, shard_tensor *tensor, bool is_parameter)
{
    const char *function = is_parameter ? "shard_module_add_parameter" : "shard_module_add_buffer";
    if (!module || !name || !tensor)
        return shard_null_argument(function, !module ? "module" : !name ? "name" : "tensor");
    SHARD_TRY(check_name(function, module, name));
    SHARD_TRY(check_value(function, module, name, tensor, is_parameter));
    SHARD_TRY(shard_grow(&module->values, &module->value_capacity, module->value_count + 1, sizeof *module->values));
    char *copy = shard_strdup(name);
    if (!copy || take_value(tensor, is_parameter) != SHARD_OK) {
        free(copy);
        return shard_last_status();
    }
    module->values[module->value_count++] = (named_value){copy, shard_tensor_ref(tensor), is_parameter};
    return SHARD_OK;
}

shard_status shard_module_add_parameter(shard_module *module, const char *name, shard_tensor *tensor)
{
    return add_value(module, name, tensor, true);
}

shard_status shard_module_add_buffer(shard_module *module, const char *name, shard_tensor *tensor)
{
    return add_value(module, name, tensor, false);
}

static shard_module *find_child(const shard_module *module, const char *name, size_t length)
{
    for (int64_t i = 0; i < module->child_count; i++)
        if (strncmp(module->children[i].name, name, length) == 0 && !module->children[i].name[length])
            return module->children[i].module;
    return NULL;
}

/* The module below this one that a dotted name leads to; *name becomes the name in it. Where a child is missing, *name has a
 * dot still. */
static const shard_module *find_owner(const shard_module *module, const char **name)
{
    const char *dot;
    while ((dot = strchr(*name, '.'))) {
        const shard_module *child = find_child(module, *name, (size_t)(dot - *name));
        if (!child)
            break;
        module = child;
        *name = dot + 1;
    }
    return module;
}

static shard_status no_such(const char *function, const shard_module *module, const char *kind, const char *name)
{
    const char *last = name;
    const shard_module *owner = find_owner(module, &last);
    size_t length = strcspn(last, ".");
    return shard_error(SHARD_ERROR_ARGUMENT, "%s: %s%s%.*s has no %s \"%.*s\"", function, shard_module_type_name(owner),
                       last > name ? " " : "", last > name ? (int)(last - name - 1) : 0, name, last[length] ? "child" : kind,
                       (int)length, last);
}

shard_status shard_module_set_parameter(shard_module *module, const char *name, shard_tensor *tensor)
{
    static const char function[] = "shard_module_set_parameter";
    if (!module || !name || !tensor)
        return shard_null_argument(function, !module ? "module" : !name ? "name" : "tensor");
    const char *last = name;
    const shard_module *owner = find_owner(module, &last);
    for (int64_t i = 0; i < owner->value_count; i++) {
        named_value *value = &owner->values[i];
        if (!value->is_parameter || strcmp(value->name, last) != 0)
            continue;
        SHARD_TRY(check_value(function, module, name, tensor, true));
        const shard_tensor *old = value->tensor;
        if (!shard_shape_equal(&old->shape, &tensor->shape) || !shard_placement_equal(&old->placement, &tensor->placement) ||
            old->dtype != tensor->dtype)
            return shard_error(SHARD_ERROR_SHAPE, "%s: \"%s\" of a %s is %s %s (%s), not %s %s (%s)", function, name,
                               shard_module_type_name(module), shard_dtype_name(old->dtype), shard_shape_text(&old->shape),
                               shard_placement_text(&old->placement), shard_dtype_name(tensor->dtype),
                               shard_shape_text(&tensor->shape), shard_placement_text(&tensor->placement));
        if (shard_device_of(old) != shard_device_of(tensor))
            return shard_error(SHARD_ERROR_SHAPE, "%s: \"%s\" of a %s is on %s, not on %s: take shard_to_device of the tensor",
                               function, name, shard_module_type_name(module), shard_device_of(old)->name,
                               shard_device_of(tensor)->name);
        SHARD_TRY(take_value(tensor, true));
        shard_tensor_ref(tensor);
        shard_tensor_unref(value->tensor);
        value->tensor = tensor;
        return SHARD_OK;
    }
    return no_such(function, module, "parameter", name);
}

/* Whether a module is the other one or has it below. */
static bool is_above(const shard_module *module, const shard_module *other)
{
    while (other && other != module)
        other = other->parent;
    return other != NULL;
}

/* Whether the child can be added to the module: it has no parent, and the module is not below it. */
static shard_status check_child(const char *function, const shard_module *module, const char *name, const shard_module *child)
{
    if (is_above(child, module))
        return shard_error(SHARD_ERROR_ARGUMENT, "%s: \"%s\", a %s, would be a child of itself: make another one", function, name,
                           shard_module_type_name(child));
    if (child->parent)
        return shard_error(SHARD_ERROR_ARGUMENT,
                           "%s: \"%s\", a %s, is a child already, of a %s: a module has one parent. To share weights, add the "
                           "same tensor to two modules (shard_module_add_parameter, shard_module_set_parameter)",
                           function, name, shard_module_type_name(child), shard_module_type_name(child->parent));
    return SHARD_OK;
}

shard_status shard_module_append(const char *function, shard_module *module, const char *name, shard_module *child)
{
    if (!module || !name || !child)
        return shard_null_argument(function, !module ? "module" : !name ? "name" : "child");
    SHARD_TRY(check_child(function, module, name, child));
    SHARD_TRY(check_name(function, module, name));
    SHARD_TRY(shard_grow(&module->children, &module->child_capacity, module->child_count + 1, sizeof *module->children));
    char *copy = shard_strdup(name);
    if (!copy)
        return shard_last_status();
    module->children[module->child_count++] = (named_child){copy, child};
    child->parent = module;
    return SHARD_OK;
}

shard_status shard_module_add_child(shard_module *module, const char *name, shard_module *child)
{
    shard_status status = shard_module_append("shard_module_add_child", module, name, child);
    if (status != SHARD_OK && !is_above(child, module))
        shard_module_abandon(child);
    return status;
}

static shard_module *child_below(const shard_module *module, const char *name)
{
    const char *last = name;
    const shard_module *owner = find_owner(module, &last);
    return find_child(owner, last, strlen(last));
}

shard_status shard_module_set_child(shard_module *module, const char *name, shard_module *child)
{
    shard_module *old = NULL;
    if (!module || !name || !child)
        shard_null_argument("shard_module_set_child", !module ? "module" : !name ? "name" : "child");
    else if (check_child("shard_module_set_child", module, name, child) != SHARD_OK)
        return shard_last_status(); /* the child stays with its owner */
    else if (!(old = child_below(module, name)))
        no_such("shard_module_set_child", module, "child", name);
    if (!old) {
        shard_module_abandon(child);
        return shard_last_status();
    }
    shard_module_replace(old, child);
    return SHARD_OK;
}

shard_module *shard_module_child(const shard_module *module, const char *name)
{
    if (!module || !name)
        return shard_null_argument("shard_module_child", module ? "name" : "module"), NULL;
    shard_module *child = child_below(module, name);
    return child ? child : (no_such("shard_module_child", module, "child", name), NULL);
}

shard_tensor *shard_module_optional(const shard_module *module, const char *name)
{
    const shard_module *owner = module && name ? find_owner(module, &name) : NULL;
    for (int64_t i = 0; owner && i < owner->value_count; i++)
        if (strcmp(owner->values[i].name, name) == 0)
            return owner->values[i].tensor;
    return NULL;
}

shard_tensor *shard_module_tensor(const shard_module *module, const char *name)
{
    if (!module || !name)
        return shard_null_argument("shard_module_tensor", module ? "name" : "module"), NULL;
    shard_tensor *tensor = shard_module_optional(module, name);
    return tensor ? tensor : (no_such("shard_module_tensor", module, "tensor", name), NULL);
}

int shard_module_child_count(const shard_module *module)
{
    return module ? (int)module->child_count : 0;
}

shard_module *shard_module_child_at(const shard_module *module, int index)
{
    return module && index >= 0 && index < module->child_count ? module->children[index].module : NULL;
}

const char *shard_module_child_name(const shard_module *module, int index)
{
    return module && index >= 0 && index < module->child_count ? module->children[index].name : NULL;
}

void shard_module_replace(shard_module *old, shard_module *module)
{
    shard_module *parent = old->parent;
    for (int64_t i = 0; parent && i < parent->child_count; i++)
        if (parent->children[i].module == old)
            parent->children[i].module = module;
    module->parent = parent;
    destroy(old);
}

/* ---- the tree ---- */

void shard_module_each(shard_module *module, void (*function)(shard_module *, void *), void *context)
{
    if (!module)
        return;
    function(module, context);
    for (int64_t i = 0; i < module->child_count; i++)
        shard_module_each(module->children[i].module, function, context);
}

static void set_training(shard_module *module, void *context)
{
    module->training = *(const bool *)context;
}

void shard_module_set_training(shard_module *module, bool training)
{
    shard_module_each(module, set_training, &training);
}

bool shard_module_is_training(const shard_module *module)
{
    return module && module->training;
}

static shard_status list_values(const shard_module *module, const char *prefix, bool buffers, shard_tensors *list)
{
    shard_status status = SHARD_OK;
    for (int64_t i = 0; i < module->value_count && status == SHARD_OK; i++) {
        if (!module->values[i].is_parameter && !buffers)
            continue;
        char *name = shard_format("%s%s", prefix, module->values[i].name);
        status = name ? shard_tensors_add(list, name, module->values[i].tensor) : shard_last_status();
        free(name);
    }
    for (int64_t i = 0; i < module->child_count && status == SHARD_OK; i++) {
        char *below = shard_format("%s%s.", prefix, module->children[i].name);
        status = below ? list_values(module->children[i].module, below, buffers, list) : shard_last_status();
        free(below);
    }
    return status;
}

static shard_tensors *list_all(const char *function, const shard_module *module, bool buffers)
{
    if (!module)
        return shard_null_argument(function, "module"), NULL;
    shard_tensors *list = shard_tensors_create();
    if (list && list_values(module, "", buffers, list) == SHARD_OK)
        return list;
    shard_tensors_destroy(list);
    return NULL;
}

shard_tensors *shard_parameters(shard_module *module)
{
    return list_all("shard_parameters", module, false);
}

shard_tensors *shard_state_dict(shard_module *module)
{
    return list_all("shard_state_dict", module, true);
}

static void allow_evict(shard_module *module, void *context)
{
    (void)context;
    for (int64_t i = 0; i < module->value_count; i++)
        if (module->values[i].tensor->storage->materializer)
            module->values[i].tensor->storage->materializer->evictable = true;
}

void shard_module_rest(shard_module *module)
{
    shard_module_each(module, allow_evict, NULL);
}

shard_tensor *shard_forward(shard_module *module, shard_tensor *x)
{
    SHARD_FUNCTION("shard_forward");
    if (!module || !x)
        return shard_null_argument("shard_forward", module ? "x" : "module"), NULL;
    if (!module->type->forward)
        return shard_fail_null(SHARD_ERROR_ARGUMENT, "shard_forward: %s has no forward: its type's .forward is NULL",
                               shard_module_type_name(module));
    shard_scope scope;
    shard_scope_open(&scope);
    shard_tensor *y = module->type->forward(module, x);
    if (!y && shard_last_status() == SHARD_OK)
        shard_error(SHARD_ERROR_ARGUMENT, "shard_forward: the forward of %s returned NULL and gave no reason (shard_error)",
                    shard_module_type_name(module));
    if (y && y->scope != &scope) /* y was made outside of forward (x itself, a parameter): the caller gets a view of it */
        y = shard_reshape(y, y->shape);
    y = shard_scope_return(y, &scope);
    shard_scope_close(&scope);
    shard_module_rest(module);
    return y;
}
