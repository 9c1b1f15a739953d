/*
 * What operations do with operands of other types while autocast is on.
 *
 * A product computes with operands that stand for its inputs: their values in 16
 * bits, without a history. It records its inputs, so that what reaches a float32
 * leaf is a float32 gradient, which a product writes there without rounding it.
 * Other operations cast by shard_cast, as the caller would.
 */
#ifndef SHARD_OP_AUTOCAST_H
#define SHARD_OP_AUTOCAST_H

#include <shard/op.h>

#include "autograd/autograd.h"

/* A product's inputs as it is to record them, and the operands that it computes
 * with; both are the inputs that came while autocast is off. NULL for NULL, and with
 * the error set where one cannot be made. They belong to the scope, or to the copies of
 * leaves that are kept while autocast is on. */
void shard_autocast_product(int count, shard_tensor **input, shard_tensor **operand);

/* Keeps an operand for the product's backward: its input, to be cast again, where that
 * one's memory comes and goes, as copies would stay. */
void shard_save_operand(shard_node *node, int slot, shard_tensor *input, shard_tensor *operand);
/* In backward: what was saved, in the product's type. NULL with the error set. */
shard_tensor *shard_saved_operand(shard_node *node, int slot, shard_dtype dtype);

/* While autocast is on, float32 for a type of 16 bits: for what needs its range. And
 * x in that type. */
shard_dtype shard_autocast_wide_type(shard_dtype dtype);
shard_tensor *shard_autocast_wide(shard_tensor *x);

/* While autocast is on, the tensors in the widest of their floating types; NULLs and
 * others are left out. Where a cast fails a tensor stays as it was, and is refused by
 * shard_check_operands. */
void shard_autocast_promote(int count, shard_tensor **x);

#endif
