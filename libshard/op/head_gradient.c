#include "op/head_gradient.h"

#include "base/hash.h"
#include "base/memory.h"
#include "op/op.h"

#include <stdlib.h>
#include <string.h>

enum { WEIGHT = SHARD_HEAD_WEIGHT, LIST = SHARD_HEAD_LIST, LIST_ON_HOST = SHARD_HEAD_LIST_ON_HOST, KEPT = SHARD_HEAD_KEPT };

/* The arrays that have an element or a row for each row of x. */
enum { X, TARGET, LSE, LSE_ERROR, SLOPE, SCALE, MARGIN_SHIFT, MARGIN_SLOPE, ARRAYS };

typedef struct head_source {
    shard_gradient_source source; /* first */
    shard_head head;              /* without memory; loss.rows: the rows that were added */
    shard_tensor *kept[KEPT];
    uint64_t version[KEPT];
    shard_device *device;
    shard_tensor *stash; /* of the forward of all rows; NULL: none */
    int64_t capacity;    /* rows */
    void *array[ARRAYS];
    int64_t *pair;                         /* [2, head.pairs], whose rows count over all that were added */
    int64_t gathered_rows, gathered_pairs; /* the first ones, which all replicas have */
} head_source;

static shard_dtype array_dtype(const shard_head *head, int array)
{
    if (array == X || array == MARGIN_SHIFT)
        return array == X ? head->dtype : shard_head_wide(head->dtype);
    return array == TARGET ? SHARD_INT64 : SHARD_FLOAT64;
}

/* Elements of a row; 0: there is no such array. */
static int64_t row_width(const shard_head *head, int array)
{
    bool absent = (head->binary && array != X && array != SCALE) || (array >= MARGIN_SHIFT && !head->margin_shift);
    return absent ? 0 : array == X ? head->in : 1;
}

static size_t row_bytes(const shard_head *head, int array)
{
    return (size_t)row_width(head, array) * shard_dtype_size(array_dtype(head, array));
}

static void release_arrays(const head_source *s, void *const *array, int64_t capacity)
{
    for (int i = 0; i < ARRAYS; i++)
        shard_device_release(s->device, SHARD_MEMORY_GRADIENTS, array[i], (size_t)capacity * row_bytes(&s->head, i));
}

static size_t pair_bytes(int64_t pairs)
{
    return 2 * (size_t)pairs * sizeof(int64_t);
}

static void destroy(shard_gradient_source *source)
{
    head_source *s = (head_source *)source;
    release_arrays(s, s->array, s->capacity);
    shard_device_release(s->device, SHARD_MEMORY_GRADIENTS, s->pair, pair_bytes(s->head.pairs));
    for (int i = 0; i < KEPT; i++)
        shard_tensor_unref(s->kept[i]);
    shard_tensor_unref(s->stash);
    free(s);
}

static shard_status check(const shard_gradient_source *source)
{
    const head_source *s = (const head_source *)source;
    for (int i = 0; i < SHARD_HEAD_ORIGINS; i++)
        if (s->kept[i] && shard_tensor_version(s->kept[i]) != s->version[i])
            return shard_error(SHARD_ERROR_ARGUMENT,
                               "%s: the gradient of the weight (also of a shard_nn_parallel_classifier) is "
                               "computed when it is needed, and a tensor of shape %s that it depends on was written to after "
                               "shard_backward: call shard_step or shard_grad before",
                               s->head.binary ? "shard_linear_binary_cross_entropy" : "shard_linear_cross_entropy",
                               shard_shape_text(&s->kept[i]->shape));
    return SHARD_OK;
}

/* A receiver of rows that counts them from the weight's first row on. */
typedef struct offset_take {
    const shard_row_receiver *to;
    int64_t first;
} offset_take;

static shard_status take_from(void *context, shard_device *device, int64_t first, int64_t count, void *gradient)
{
    const offset_take *offset = context;
    return offset->to->take(offset->to->context, device, offset->first + first, count, gradient);
}

static shard_status take_list_from(void *context, shard_device *device, const shard_row_list *rows, void *gradient)
{
    const offset_take *offset = context; /* whose first is 0: a list has the weight's rows */
    return offset->to->take_list(offset->to->context, device, rows, gradient);
}

static shard_status take_product_from(void *context, shard_device *device, int64_t first, int64_t count,
                                      const shard_update_product *product)
{
    const offset_take *offset = context;
    return offset->to->take_product(offset->to->context, device, offset->first + first, count, product);
}

/* How many of the list's rows come before `row`. */
static int64_t position(const shard_head *head, int64_t row)
{
    int64_t low = 0, high = head->loss.cols;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (head->list_on_host[middle] < row)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Takes the classes of these rows of the weight alone. */
static void restrict_to(shard_head *head, shard_range rows, offset_take *take, void **bias)
{
    shard_dtype wide = shard_head_wide(head->dtype);
    int64_t first = head->list ? position(head, rows.start) : rows.start;
    head->loss.cols = head->list ? position(head, rows.start + rows.size) - first : rows.size;
    head->loss.col0 += first;
    head->stash = NULL; /* of the tiles of all classes */
    head->bias = shard_head_element(head->bias, first, head->weight_dtype);
    head->class_weight = shard_head_element(head->class_weight, first, wide);
    head->positive = shard_head_element(head->positive, first, wide);
    if (head->list) {
        head->list += first;
        head->list_on_host += first;
        return;
    }
    head->weight = shard_head_element(head->weight, first * head->in, head->weight_dtype);
    head->weight_rows = rows.size;
    *bias = (void *)shard_head_element(*bias, first, head->weight_dtype);
    take->first = first;
}

void shard_head_set_stash(shard_head *head, shard_tensor *stash)
{
    head->stash = stash ? shard_tensor_memory(stash) : NULL;
    head->stash_bytes = stash ? shard_tensor_bytes(stash) : 0;
}

static shard_status compute(shard_gradient_source *source, shard_range part, void *const *memory,
                            const shard_row_receiver *receiver)
{
    head_source *s = (head_source *)source;
    shard_head head = s->head;
    void *kept[SHARD_HEAD_ORIGINS], *bias = memory[SHARD_SOURCE_VECTOR];
    offset_take offset = {receiver, 0};
    if (!shard_load(SHARD_HEAD_ORIGINS, s->kept, kept))
        return shard_last_status();
    head.weight = kept[WEIGHT];
    head.bias = kept[SHARD_HEAD_BIAS];
    head.class_weight = kept[SHARD_HEAD_CLASS_WEIGHT];
    head.positive = kept[SHARD_HEAD_POSITIVE];
    head.pair = s->pair;
    head.list = kept[LIST];
    head.list_on_host = kept[LIST_ON_HOST];
    shard_head_set_stash(&head, s->stash);
    head.x = s->array[X];
    head.target = s->array[TARGET];
    head.margin_shift = s->array[MARGIN_SHIFT];
    head.margin_slope = s->array[MARGIN_SLOPE];
    const shard_loss_rows rows = {s->array[LSE], s->array[LSE_ERROR], s->array[SLOPE], s->array[SCALE]};
    if (receiver && part.size < head.weight_rows)
        restrict_to(&head, part, &offset, &bias);
    shard_head_gradient to = {.weight = memory[SHARD_SOURCE_MATRIX],
                              .take = receiver && receiver->take ? take_from : NULL,
                              .context = &offset,
                              .bias = bias};
    if (receiver && receiver->take_list)
        to.take_list = take_list_from;
    if (receiver && receiver->take_product)
        to.take_product = take_product_from;
    for (int i = 0; receiver && !head.list && i < receiver->updated_arrays; i++)
        to.updated[to.updated_arrays++] = receiver->updated[i];
    return shard_head_weight_gradient(s->device, &head, &rows, &to);
}

static const shard_gradient_source_type head_source_type;

shard_gradient_source *shard_head_source_create(const shard_head *head, shard_tensor *const *given)
{
    head_source *s = shard_calloc(1, sizeof *s);
    if (!s)
        return NULL;
    *s = (head_source){
        .source = {.type = &head_source_type, .references = 1}, .head = *head, .device = shard_device_of(given[WEIGHT])};
    s->head.loss.rows = s->head.pairs = 0;
    s->head.margin_logit = NULL; /* of the features' gradient */
    for (int i = 0; i < KEPT; i++) {
        s->kept[i] = given[i] ? shard_keep_for_backward(given[i]) : NULL;
        if (given[i] && !s->kept[i])
            return shard_gradient_source_unref(&s->source), NULL;
        s->version[i] = given[i] ? shard_tensor_version(s->kept[i]) : 0;
    }
    return &s->source;
}

static bool same_memory(const shard_tensor *a, const shard_tensor *b)
{
    return a == b || (a && b && a->storage == b->storage && a->offset == b->offset);
}

/* The number of the tensor that number i is a copy of, or of itself. */
static int origin_of(shard_tensor *const *kept, int i)
{
    int origin = i - SHARD_HEAD_BIAS + SHARD_HEAD_ORIGINS;
    return i != WEIGHT && i < LIST && kept[origin] ? origin : i;
}

/* Whether both have the same tensor of number i. */
static bool same_kept(const head_source *s, shard_tensor *const *given, int i)
{
    return same_memory(s->kept[i], given[i]) && (!given[i] || s->version[i] == shard_tensor_version(given[i]));
}

/* Whether both have the same list; a list is made for each call. */
static bool same_list(const head_source *s, shard_tensor *const *given)
{
    shard_tensor *a = s->kept[LIST_ON_HOST], *b = given[LIST_ON_HOST];
    if (!a || !b)
        return a == b;
    return shard_numel(a) == shard_numel(b) &&
           memcmp(shard_tensor_memory(a), shard_tensor_memory(b), (size_t)shard_numel(a) * sizeof(int64_t)) == 0;
}

bool shard_head_source_takes(const shard_gradient_source *source, const shard_head *head, shard_tensor *const *given)
{
    const head_source *s = (const head_source *)source;
    if (source->type != &head_source_type || !same_list(s, given))
        return false;
    for (int i = WEIGHT; i < LIST; i++) {
        bool corrected = i == SHARD_HEAD_BIAS && given[SHARD_HEAD_CORRECTION_ORIGIN];
        if (!same_kept(s, given, corrected ? SHARD_HEAD_BIAS_ORIGIN : origin_of(given, i)))
            return false;
    }
    if (!same_kept(s, given, SHARD_HEAD_CORRECTION_ORIGIN))
        return false;
    const shard_cross_entropy_shape *a = &s->head.loss, *b = &head->loss;
    const shard_logit_map *m = &a->map, *n = &b->map;
    bool same_margins =
        s->head.binary == head->binary && s->head.normalized == head->normalized && !s->head.margin_shift == !head->margin_shift;
    bool same_map = m->maps == n->maps && (!m->maps || (m->scale == n->scale && m->soft_cap == n->soft_cap));
    return same_margins && same_map && s->head.dtype == head->dtype && a->smoothing == b->smoothing &&
           a->ignore_index == b->ignore_index && a->classes == b->classes && a->cols == b->cols && a->col0 == b->col0;
}

/* Makes room for `more` rows. */
static shard_status reserve(head_source *s, int64_t more)
{
    int64_t rows = s->head.loss.rows, capacity = rows + more;
    void *array[ARRAYS] = {NULL};
    shard_status status = SHARD_OK;
    if (capacity <= s->capacity)
        return SHARD_OK;
    capacity = rows ? 2 * capacity : capacity;
    for (int i = 0; i < ARRAYS && status == SHARD_OK; i++) {
        size_t bytes = row_bytes(&s->head, i), used = (size_t)rows * bytes;
        if (bytes == 0)
            continue;
        array[i] = shard_device_allocate(s->device, SHARD_MEMORY_GRADIENTS, (size_t)capacity * bytes);
        status = array[i] ? SHARD_OK : shard_last_status();
        if (status == SHARD_OK && rows)
            status = s->device->ops->copy_rows(s->device, array[i], used, s->array[i], used, used, 1);
    }
    if (status != SHARD_OK)
        return release_arrays(s, array, capacity), status;
    release_arrays(s, s->array, s->capacity);
    for (int i = 0; i < ARRAYS; i++)
        s->array[i] = array[i];
    s->capacity = capacity;
    return SHARD_OK;
}

/* Adds `by` to the rows of n pairs, which float64 has exactly. */
static shard_status shift_rows(head_source *s, int64_t n, int64_t by, int64_t *row)
{
    const shard_device_ops *ops = s->device->ops;
    size_t bytes = 2 * (size_t)n * sizeof(double);
    double *wide = shard_device_allocate(s->device, SHARD_MEMORY_WORKSPACE, bytes);
    shard_status status = wide ? ops->cast(s->device, n, row, SHARD_INT64, wide, SHARD_FLOAT64) : shard_last_status();
    if (status == SHARD_OK)
        status = ops->fill(s->device, n, (double)by, wide + n, SHARD_FLOAT64);
    if (status == SHARD_OK)
        status = ops->axpby(s->device, n, 1, wide + n, 1, wide, SHARD_FLOAT64);
    if (status == SHARD_OK)
        status = ops->cast(s->device, n, wide, SHARD_FLOAT64, row, SHARD_INT64);
    shard_device_release(s->device, SHARD_MEMORY_WORKSPACE, wide, bytes);
    return status;
}

/* Adds the pairs of rows that come after those that the source has. */
static shard_status add_pairs(head_source *s, const shard_head *head)
{
    const shard_device_ops *ops = s->device->ops;
    int64_t old = s->head.pairs, more = head->pairs, all = old + more;
    size_t pitch = (size_t)all * sizeof(int64_t), width = (size_t)old * sizeof(int64_t), added = (size_t)more * sizeof(int64_t);
    if (more == 0)
        return SHARD_OK;
    int64_t *pair = shard_device_allocate(s->device, SHARD_MEMORY_GRADIENTS, pair_bytes(all));
    shard_status status = pair ? SHARD_OK : shard_last_status();
    if (status == SHARD_OK && old)
        status = ops->copy_rows(s->device, pair, pitch, s->pair, width, width, 2);
    if (status == SHARD_OK)
        status = ops->copy_rows(s->device, pair + old, pitch, head->pair, added, added, 2);
    if (status == SHARD_OK && s->head.loss.rows)
        status = shift_rows(s, more, s->head.loss.rows, pair + old);
    if (status != SHARD_OK)
        return shard_device_release(s->device, SHARD_MEMORY_GRADIENTS, pair, pair_bytes(all)), status;
    shard_device_release(s->device, SHARD_MEMORY_GRADIENTS, s->pair, pair_bytes(old));
    s->pair = pair;
    s->head.pairs = all;
    return SHARD_OK;
}

shard_status shard_head_source_add(shard_gradient_source *source, const shard_head *head, const shard_loss_rows *rows,
                                   shard_tensor *stash)
{
    head_source *s = (head_source *)source;
    const void *from[ARRAYS] = {head->x,     head->target, rows->lse,          rows->lse_error,
                                rows->slope, rows->scale,  head->margin_shift, head->margin_slope};
    source->gathered = false;
    if (head->loss.rows == 0)
        return SHARD_OK;
    shard_tensor_unref(s->stash);
    s->stash = stash && s->head.loss.rows == 0 ? shard_tensor_ref(stash) : NULL;
    SHARD_TRY(reserve(s, head->loss.rows));
    for (int i = 0; i < ARRAYS; i++) {
        size_t bytes = row_bytes(&s->head, i), used = (size_t)s->head.loss.rows * bytes, added = (size_t)head->loss.rows * bytes;
        if (bytes)
            SHARD_TRY(s->device->ops->copy_rows(s->device, (char *)s->array[i] + used, added, from[i], added, added, 1));
    }
    SHARD_TRY(add_pairs(s, head));
    s->head.loss.rows += head->loss.rows;
    return SHARD_OK;
}

/* ---- replicas ---- */

/* Sets *digest to a hash of the tensor's values. Copies them to the host, unless its storage has the hash of this version. */
static shard_status digest_values(shard_tensor *x, uint64_t *digest)
{
    shard_storage *storage = x->storage;
    size_t bytes = shard_tensor_bytes(x), words = bytes / sizeof(uint64_t) + 1;
    bool whole = !x->writes && bytes == storage->bytes;
    *digest = storage->digest;
    if (whole && storage->digest && storage->digest_version == storage->version)
        return SHARD_OK;
    uint64_t *copy = shard_calloc(words, sizeof *copy);
    shard_status status = copy ? shard_copy_to_host(x, copy, bytes) : shard_last_status();
    *digest = SHARD_HASH_START;
    for (size_t i = 0; i < words && status == SHARD_OK; i++) {
        *digest = shard_hash_word(*digest, copy[i]);
        *digest ^= *digest >> 32;
    }
    free(copy);
    *digest |= 1;
    if (whole && status == SHARD_OK) {
        storage->digest = *digest;
        storage->digest_version = storage->version;
    }
    return status;
}

/* Adds a tensor that may be NULL to the hash. It is the one that was given, unless that was written to since: a copy is made
 * in each call. */
static shard_status hash_values(const head_source *s, int i, uint64_t *hash)
{
    int origin = origin_of(s->kept, i);
    shard_tensor *given = s->kept[origin], *x = given && shard_tensor_version(given) == s->version[origin] ? given : s->kept[i];
    const int64_t facts[] = {x == given, x ? (int64_t)x->dtype : -1, x ? shard_numel(x) : 0};
    uint64_t digest = 0;
    if (x)
        SHARD_TRY(digest_values(x, &digest));
    *hash = shard_hash_word(shard_hash_words(*hash, facts, sizeof facts / sizeof *facts), digest);
    return SHARD_OK;
}

static uint64_t hash_number(uint64_t hash, double number)
{
    return shard_hash_bytes(hash, &number, sizeof number);
}

static shard_status describe(shard_gradient_source *source, shard_source_facts *facts)
{
    head_source *s = (head_source *)source;
    const shard_head *h = &s->head;
    const shard_cross_entropy_shape *loss = &h->loss;
    const int64_t words[] = {h->in,
                             h->dtype,
                             h->weight_dtype,
                             h->binary,
                             h->normalized,
                             loss->cols,
                             loss->col0,
                             loss->classes,
                             loss->ignore_index,
                             loss->map.maps,
                             s->gathered_rows,
                             s->gathered_pairs,
                             h->margin_shift != NULL,
                             h->bias != NULL,
                             source->gradient[SHARD_SOURCE_VECTOR] != NULL};
    uint64_t hash = shard_hash_words(SHARD_HASH_START, words, sizeof words / sizeof *words);
    hash = hash_number(hash, loss->smoothing);
    hash = loss->map.maps ? hash_number(hash_number(hash, loss->map.scale), loss->map.soft_cap) : hash;
    const int values[] = {SHARD_HEAD_CLASS_WEIGHT, SHARD_HEAD_POSITIVE, LIST_ON_HOST, SHARD_HEAD_CORRECTION_ORIGIN};
    for (int i = 0; i < (int)(sizeof values / sizeof *values); i++)
        SHARD_TRY(hash_values(s, values[i], &hash));
    *facts = (shard_source_facts){.hash = hash | 1,
                                  .rows = loss->rows - s->gathered_rows,
                                  .pairs = h->pairs - s->gathered_pairs,
                                  .bytes = (int64_t)pair_bytes(h->pairs - s->gathered_pairs),
                                  .gathered_bytes = (int64_t)pair_bytes(s->gathered_pairs),
                                  .sampled = s->kept[LIST_ON_HOST] != NULL};
    for (int i = 0; i < ARRAYS; i++) {
        facts->bytes += facts->rows * (int64_t)row_bytes(h, i);
        facts->gathered_bytes += s->gathered_rows * (int64_t)row_bytes(h, i);
    }
    return SHARD_OK;
}

/* The rows and pairs of all ranks, and those of the ranks before this one. */
typedef struct gathering {
    shard_group *group;
    const shard_source_facts *facts;
    int64_t rows, pairs, rows_before;
    int64_t capacity, all_pairs; /* with those that were gathered before */
    void *array[ARRAYS];
    int64_t *pair; /* [2, all_pairs] */
} gathering;

/* Room for all, with what was gathered before. This rank's rows get their final numbers and factors. */
static shard_status begin_gathering(head_source *s, gathering *g, double scale)
{
    const shard_device_ops *ops = s->device->ops;
    int64_t rows = s->head.loss.rows - s->gathered_rows, pairs = s->head.pairs - s->gathered_pairs;
    double *own = (double *)s->array[SCALE] + s->gathered_rows;
    for (int i = 0; i < ARRAYS; i++) {
        size_t bytes = row_bytes(&s->head, i), used = (size_t)s->gathered_rows * bytes;
        if (bytes == 0)
            continue;
        g->array[i] = shard_device_allocate(s->device, SHARD_MEMORY_GRADIENTS, (size_t)g->capacity * bytes);
        if (!g->array[i])
            return shard_last_status();
        if (used)
            SHARD_TRY(ops->copy_rows(s->device, g->array[i], used, s->array[i], used, used, 1));
    }
    if (rows)
        SHARD_TRY(ops->axpby(s->device, rows, scale, own, 0, own, SHARD_FLOAT64));
    if (g->all_pairs == 0)
        return SHARD_OK;
    size_t width = (size_t)s->gathered_pairs * sizeof(int64_t), pitch = (size_t)g->all_pairs * sizeof(int64_t);
    g->pair = shard_device_allocate(s->device, SHARD_MEMORY_GRADIENTS, pair_bytes(g->all_pairs));
    if (!g->pair)
        return shard_last_status();
    if (width)
        SHARD_TRY(ops->copy_rows(s->device, g->pair, pitch, s->pair, (size_t)s->head.pairs * sizeof(int64_t), width, 2));
    return pairs && g->rows_before ? shift_rows(s, pairs, g->rows_before, s->pair + s->gathered_pairs) : SHARD_OK;
}

/* Gathers `width` numbers of each row, or one of each pair, into `to`. Memory is NULL after an error. */
static shard_status gather_array(const head_source *s, const gathering *g, bool of_pairs, int64_t width, shard_dtype dtype,
                                 const void *from, void *to)
{
    int ranks = shard_group_size(g->group);
    int64_t *counts = shard_calloc((size_t)ranks, sizeof *counts);
    if (!counts)
        return shard_group_fail(g->group);
    for (int rank = 0; rank < ranks; rank++)
        counts[rank] = (of_pairs ? g->facts[rank].pairs : g->facts[rank].rows) * width;
    shard_status status = shard_group_all_gather(g->group, s->device, from, to, counts, dtype);
    free(counts);
    return status;
}

static shard_status gather_all(const head_source *s, const gathering *g)
{
    for (int i = 0; i < ARRAYS; i++) {
        int64_t width = row_width(&s->head, i), before = s->gathered_rows * width;
        shard_dtype dtype = array_dtype(&s->head, i);
        if (width)
            SHARD_TRY(gather_array(s, g, false, width, dtype, shard_head_element(s->array[i], before, dtype),
                                   (void *)shard_head_element(g->array[i], before, dtype)));
    }
    for (int i = 0; i < 2 && g->pairs; i++) {
        int64_t from = i * s->head.pairs + s->gathered_pairs, to = i * g->all_pairs + s->gathered_pairs;
        SHARD_TRY(gather_array(s, g, true, 1, SHARD_INT64, shard_head_element(s->pair, from, SHARD_INT64),
                               (void *)shard_head_element(g->pair, to, SHARD_INT64)));
    }
    return SHARD_OK;
}

/* Exchanges the source's arrays for those that were gathered. */
static void take_gathered(head_source *s, gathering *g)
{
    gathering had = {.capacity = s->capacity, .pair = s->pair, .all_pairs = s->head.pairs};
    memcpy(had.array, s->array, sizeof had.array);
    memcpy(s->array, g->array, sizeof had.array);
    s->capacity = s->head.loss.rows = s->gathered_rows = g->capacity;
    s->pair = g->pair;
    s->head.pairs = s->gathered_pairs = g->all_pairs;
    *g = had;
}

static shard_status gather(shard_gradient_source *source, shard_group *group, const shard_source_facts *facts, double scale)
{
    head_source *s = (head_source *)source;
    gathering g = {.group = group, .facts = facts};
    for (int rank = 0; rank < shard_group_size(group); rank++) {
        g.rows += facts[rank].rows;
        g.pairs += facts[rank].pairs;
        g.rows_before += rank < shard_group_rank(group) ? facts[rank].rows : 0;
    }
    g.capacity = s->gathered_rows + g.rows;
    g.all_pairs = s->gathered_pairs + g.pairs;
    shard_tensor_unref(s->stash); /* of this rank's rows */
    s->stash = NULL;
    source->gathered = true;
    if (g.rows == 0)
        return SHARD_OK;
    begin_gathering(s, &g, scale);
    shard_status status = gather_all(s, &g); /* after an error, too: the other ranks receive it */
    if (status == SHARD_OK)
        take_gathered(s, &g);
    release_arrays(s, g.array, g.capacity);
    shard_device_release(s->device, SHARD_MEMORY_GRADIENTS, g.pair, pair_bytes(g.all_pairs));
    return status;
}

static const shard_gradient_source_type head_source_type = {
    .check = check, .compute = compute, .describe = describe, .gather = gather, .destroy = destroy};
