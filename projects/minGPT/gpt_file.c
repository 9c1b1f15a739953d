/*
 * The state dict of GPT2LMHeadModel. Its layers are transposed (Conv1D: [in, out]), and q, k and v are the columns of one weight:
 * c_attn [n_embd, 3 n_embd]. The columns of a rank's heads are in three places of it, and a file is read and written by ranges.
 * So each rank reads and writes rows of c_attn, and the ranks gather one layer's c_attn at a time.
 */
#include "gpt.h"

#include "ends_with.h"

#include <inttypes.h>
#include <string.h>

#define NAME_BYTES 96
#define HEAD "lm_head.weight"
#define PREFIX "transformer."

static const char *const attention_parts[] = {"q", "k", "v"};

/* The layers of a block whose weights are transposed. */
static const struct {
    const char *module, *layer;
} transposed[] = {{"attn", "c_proj"}, {"mlp", "c_fc"}, {"mlp", "c_proj"}};
#define TRANSPOSED (sizeof transposed / sizeof *transposed)

static shard_module *transformer_of(shard_module *gpt)
{
    return shard_module_child(gpt, "transformer");
}

static shard_module *block_at(shard_module *gpt, int64_t layer)
{
    return shard_module_child_at(shard_module_child(transformer_of(gpt), "h"), (int)layer);
}

static shard_group *group_of(shard_module *gpt)
{
    return shard_tensor_placement(shard_module_tensor(shard_module_child(transformer_of(gpt), "wte"), "weight")).group;
}

/* A parameter: its name in the file, and its module and name in the network. */
typedef struct place {
    char name[NAME_BYTES];
    shard_module *module;
    const char *tensor;
} place;

static place place_in_block(shard_module *gpt, int64_t layer, const char *part, const char *child, const char *tensor)
{
    place found = {.module = block_at(gpt, layer), .tensor = tensor};
    if (part)
        found.module = shard_module_child(found.module, part);
    if (child)
        found.module = shard_module_child(found.module, child);
    snprintf(found.name, sizeof found.name, PREFIX "h.%" PRId64 ".%s%s%s%s%s", layer, part ? part : "", part ? "." : "",
             child ? child : "", child ? "." : "", tensor);
    return found;
}

/* Calls `use` for each parameter but q, k and v. transpose: the file has the transposed parameter. */
static void visit(shard_module *gpt, void (*use)(void *context, const place *at, bool transpose), void *context)
{
    static const char *const both[] = {"weight", "bias"};
    shard_module *transformer = transformer_of(gpt);
    const gpt_config *config = gpt_config_of(gpt);
    use(context, &(place){PREFIX "wte.weight", shard_module_child(transformer, "wte"), "weight"}, false);
    use(context, &(place){PREFIX "wpe.weight", shard_module_child(transformer, "wpe"), "weight"}, false);
    for (int64_t layer = 0; layer < config->n_layer; layer++) {
        place at;
        for (int i = 0; i < 2; i++) {
            at = place_in_block(gpt, layer, NULL, "ln_1", both[i]);
            use(context, &at, false);
            at = place_in_block(gpt, layer, NULL, "ln_2", both[i]);
            use(context, &at, false);
            for (size_t k = 0; k < TRANSPOSED; k++) {
                at = place_in_block(gpt, layer, transposed[k].module, transposed[k].layer, both[i]);
                use(context, &at, i == 0);
            }
        }
    }
    for (int i = 0; i < 2; i++) {
        place at = {.module = shard_module_child(transformer, "ln_f"), .tensor = both[i]};
        snprintf(at.name, sizeof at.name, PREFIX "ln_f.%s", both[i]);
        use(context, &at, false);
    }
    if (!config->tie_word_embeddings)
        use(context, &(place){HEAD, shard_module_child(gpt, "lm_head"), "weight"}, false);
}

/* ---- export ---- */

static void add(void *context, const place *at, bool transpose)
{
    shard_tensor *values = shard_module_tensor(at->module, at->tensor);
    shard_tensors_add(context, at->name, transpose ? shard_transpose(values, 0, 1) : shard_clone(values));
}

/* Weights of q, k and v, [n_embd, n_embd] each, as the rows of this rank of [n_embd, 3 n_embd]; or biases as [3 n_embd]. */
static shard_tensor *fuse(shard_module *attention, const char *tensor, shard_group *group)
{
    shard_tensor *part[3];
    bool weight = strcmp(tensor, "weight") == 0;
    shard_tensor *first = shard_module_tensor(shard_module_child(attention, "q"), "weight");
    int64_t width = shard_tensor_size(first, 1);
    shard_range rows = shard_split_range(width, shard_group_size(group), shard_group_rank(group));
    for (int i = 0; i < 3; i++) {
        part[i] = shard_module_tensor(shard_module_child(attention, attention_parts[i]), tensor);
        part[i] = shard_gather_from_group(part[i], 0, group);
        if (weight)
            part[i] = shard_transpose(shard_narrow(part[i], 1, rows.start, rows.size), 0, 1);
    }
    shard_tensor *fused = shard_concatenate(part, 3, -1);
    return weight ? shard_as_split(fused, 0, group, rows.start, width) : fused;
}

shard_tensors *gpt_export(shard_module *gpt)
{
    shard_tensors *list = shard_tensors_create();
    SHARD_NO_GRAD
    {
        SHARD_SCOPE
        {
            visit(gpt, add, list);
        }
        for (int64_t layer = 0; layer < gpt_config_of(gpt)->n_layer; layer++)
            SHARD_SCOPE
            {
                place weight = place_in_block(gpt, layer, "attn", NULL, "c_attn.weight");
                place bias = place_in_block(gpt, layer, "attn", NULL, "c_attn.bias");
                shard_tensors_add(list, weight.name, fuse(weight.module, "weight", group_of(gpt)));
                shard_tensors_add(list, bias.name, fuse(bias.module, "bias", group_of(gpt)));
            }
    }
    if (shard_last_status() == SHARD_OK)
        return list;
    shard_tensors_destroy(list);
    return NULL;
}

/* ---- import ---- */

/* Copies values, whole or placed as the tensor, into a module's tensor. */
static void take(shard_module *module, const char *tensor, shard_tensor *values)
{
    shard_tensors *to = shard_tensors_create(), *from = shard_tensors_create();
    shard_tensors_add(to, tensor, shard_module_tensor(module, tensor));
    shard_tensors_add(from, tensor, values);
    shard_load_state_dict(to, from);
    shard_tensors_destroy(to);
    shard_tensors_destroy(from);
}

static shard_tensor *find(const shard_tensors *list, const char *name)
{
    shard_tensor *found = shard_tensors_find(list, name);
    if (!found)
        shard_error(SHARD_ERROR_SHAPE, "there is no %s", name);
    return found;
}

static void take_place(void *context, const place *at, bool transpose)
{
    SHARD_SCOPE
    {
        shard_tensor *values = find(context, at->name);
        take(at->module, at->tensor, transpose ? shard_transpose(values, 0, 1) : values);
    }
}

/* The reverse of `fuse`. */
static void divide(shard_module *attention, const char *tensor, shard_tensor *fused, shard_group *group)
{
    bool weight = strcmp(tensor, "weight") == 0;
    shard_tensor *whole = weight ? shard_gather_from_group(fused, 0, group) : fused;
    int64_t width = shard_tensor_size(whole, -1) / 3;
    for (int i = 0; i < 3 && whole; i++) {
        shard_tensor *part = shard_narrow(whole, -1, i * width, width);
        take(shard_module_child(attention, attention_parts[i]), tensor, weight ? shard_transpose(part, 0, 1) : part);
    }
}

shard_status gpt_import(shard_module *gpt, const shard_tensors *list)
{
    SHARD_NO_GRAD
    {
        visit(gpt, take_place, (void *)list);
        for (int64_t layer = 0; layer < gpt_config_of(gpt)->n_layer; layer++)
            SHARD_SCOPE
            {
                place weight = place_in_block(gpt, layer, "attn", NULL, "c_attn.weight");
                place bias = place_in_block(gpt, layer, "attn", NULL, "c_attn.bias");
                divide(weight.module, "weight", find(list, weight.name), group_of(gpt));
                divide(bias.module, "bias", find(list, bias.name), group_of(gpt));
            }
    }
    return shard_last_status();
}

/* ---- files ---- */

/* The tensors of a file, without memory, and what is compared of them. */
typedef struct comparison {
    const char *path;
    shard_tensors *file, *known; /* known: parameters by their names in the file */
    bool prefixed, tied;         /* prefixed: names begin with "transformer." */
} comparison;

/* A parameter's name in the file. */
static const char *name_in_file(const char *name, bool prefixed)
{
    return prefixed || strcmp(name, HEAD) == 0 ? name : name + strlen(PREFIX);
}

static const char *shape_text(char *text, size_t bytes, shard_shape shape)
{
    size_t used = (size_t)snprintf(text, bytes, "[");
    for (int i = 0; i < shape.ndim && used < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%" PRId64, i ? ", " : "", shape.dim[i]);
    if (used < bytes)
        snprintf(text + used, bytes - used, "]");
    return text;
}

static void compare_shape(comparison *of, const char *whole_name, shard_tensor *parameter, shard_shape wanted)
{
    const char *name = name_in_file(whole_name, of->prefixed);
    shard_tensor *found = shard_tensors_find(of->file, name);
    char texts[2][128];
    shard_tensors_add(of->known, name, parameter);
    if (!found) {
        shard_error(SHARD_ERROR_SHAPE, "%s: there is no %s", of->path, name);
        return;
    }
    shard_shape shape = shard_tensor_whole_shape(found);
    bool same = shape.ndim == wanted.ndim;
    for (int i = 0; i < wanted.ndim && same; i++)
        same = shape.dim[i] == wanted.dim[i];
    if (!same)
        shard_error(SHARD_ERROR_SHAPE, "%s: its %s is %s, and by config.json it is %s", of->path, name,
                    shape_text(texts[0], sizeof texts[0], shape), shape_text(texts[1], sizeof texts[1], wanted));
}

static void compare_place(void *context, const place *at, bool transpose)
{
    shard_tensor *parameter = shard_module_tensor(at->module, at->tensor);
    shard_shape shape = shard_tensor_whole_shape(parameter);
    if (shard_last_status() == SHARD_OK)
        compare_shape(context, at->name, parameter, transpose ? SHARD_SHAPE(shape.dim[1], shape.dim[0]) : shape);
}

static void compare_attention(comparison *of, shard_module *gpt, int64_t layer)
{
    place weight = place_in_block(gpt, layer, "attn", NULL, "c_attn.weight"),
          bias = place_in_block(gpt, layer, "attn", NULL, "c_attn.bias");
    shard_module *part = shard_module_child(weight.module, "q");
    int64_t width = gpt_config_of(gpt)->n_embd;
    if (shard_last_status() == SHARD_OK)
        compare_shape(of, weight.name, shard_module_tensor(part, "weight"), SHARD_SHAPE(width, 3 * width));
    if (shard_last_status() == SHARD_OK)
        compare_shape(of, bias.name, shard_module_tensor(part, "bias"), SHARD_SHAPE(3 * width));
}

static void check_unexpected(const comparison *of, const char *name)
{
    /* masks of older versions, unless of BOOL, which are not listed; the weight of a tied head; the training state of a
     * checkpoint */
    bool ignored = ends_with(name, ".attn.bias") || ends_with(name, ".attn.masked_bias") ||
                   (of->tied && strcmp(name, HEAD) == 0) || strncmp(name, "optimizer.", 10) == 0 ||
                   strncmp(name, "scaler.", 7) == 0;
    if (!ignored && !shard_tensors_find(of->known, name))
        shard_error(SHARD_ERROR_SHAPE, "%s: its tensor %s is not one of this GPT-2; is its config.json of another file?",
                    of->path, name);
}

/* Compares the file with the network before this takes memory: its sizes are config.json's, which may be any. */
static shard_status check_file(shard_module *gpt, const char *path, bool *prefixed)
{
    comparison of = {.path = path, .file = shard_inspect_loadable(path, NULL), .tied = gpt_config_of(gpt)->tie_word_embeddings};
    of.known = shard_tensors_create();
    *prefixed = of.prefixed = of.file && shard_tensors_find(of.file, PREFIX "wte.weight");
    if (shard_last_status() == SHARD_OK)
        visit(gpt, compare_place, &of);
    for (int64_t layer = 0; layer < gpt_config_of(gpt)->n_layer && shard_last_status() == SHARD_OK; layer++)
        compare_attention(&of, gpt, layer);
    for (int64_t i = 0; i < shard_tensors_count(of.file) && shard_last_status() == SHARD_OK; i++)
        check_unexpected(&of, shard_tensors_name(of.file, i));
    shard_tensors_destroy(of.file);
    shard_tensors_destroy(of.known);
    return shard_agree(shard_world()); /* a rank alone may have read another file */
}

shard_status gpt_load(shard_module *gpt, const char *path)
{
    bool prefixed;
    shard_status status = check_file(gpt, path, &prefixed);
    if (status != SHARD_OK)
        return status;
    shard_tensors *list = gpt_export(gpt), *of_file = shard_tensors_create();
    if (!list || !of_file)
        status = shard_last_status();
    for (int64_t i = 0; i < shard_tensors_count(list) && status == SHARD_OK; i++)
        status = shard_tensors_add(of_file, name_in_file(shard_tensors_name(list, i), prefixed), shard_tensors_at(list, i));
    status = shard_agree(shard_world());
    if (status == SHARD_OK)
        status = shard_load(of_file, path, .allow_unexpected = true, .convert = true);
    if (status == SHARD_OK)
        status = gpt_import(gpt, list);
    shard_tensors_destroy(list);
    shard_tensors_destroy(of_file);
    return status;
}
