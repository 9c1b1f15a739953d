#include "op/label_margins.h"

#include "base/hash.h"

bool shard_label_margins_read(const shard_class_rows *rows, const shard_margin_logits_options *options,
                              shard_label_margins *margins)
{
    margins->margin.m1 = options->m1;
    margins->margin.m2 = options->m2;
    margins->margin.m3 = options->m3;
    margins->margin.rule = (int64_t)options->rule;
    return shard_margin_check(rows->function, options) &&
           shard_class_rows_widen(rows, options->row_m2, "row_m2", &margins->row_m2) &&
           shard_class_rows_widen(rows, options->row_m3, "row_m3", &margins->row_m3);
}

void shard_label_margins_set(shard_head *h, const void *shift, const double *numbers)
{
    h->margin_shift = shift;
    h->margin_logit = numbers;
    h->margin_slope = numbers ? numbers + h->loss.rows : NULL;
}

bool shard_label_margins_compute(shard_label_margins *margins, shard_tensor *x, shard_head *h)
{
    int64_t rows = h->loss.rows;
    shard_tensor *shift = shard_workspace(x, rows, shard_head_wide(h->dtype)), *numbers;
    numbers = margins->numbers = shard_workspace(x, 2 * rows, SHARD_FLOAT64);
    margins->shift = shift;
    void *memory[4];
    if (!shift || !numbers || !shard_load(SHARD_INPUTS(shift, numbers, margins->row_m2, margins->row_m3), memory))
        return false;
    const shard_head_margin margin = {margins->margin, memory[2], memory[3]};
    double *number = memory[1];
    if (shard_head_label_margins(shard_device_of(x), h, &margin, number, number + rows, memory[0]) != SHARD_OK)
        return false;
    shard_label_margins_set(h, memory[0], number);
    return true;
}

uint64_t shard_label_margins_hash(uint64_t hash, bool normalized, const shard_label_margins *margins)
{
    const shard_margin *m = &margins->margin;
    const double factors[] = {m->scale, m->m1, m->m2, m->m3};
    const int64_t flags[] = {normalized, m->rule, margins->row_m2 != NULL, margins->row_m3 != NULL};
    return shard_hash_words(shard_hash_bytes(hash, factors, sizeof factors), flags, sizeof flags / sizeof *flags);
}
