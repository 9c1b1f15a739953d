/*
 * Casts of operands while autocast is on.
 *
 * A product computes with 16-bit copies of its inputs that have no history. It records the inputs themselves, so
 * that a float32 leaf gets a float32 gradient, which a product writes without rounding. Other operations cast by
 * shard_cast, as the caller would.
 */
#ifndef SHARD_OP_AUTOCAST_H
#define SHARD_OP_AUTOCAST_H

#include <shard/op.h>

#include "autograd/autograd.h"

/* Casts the inputs of a product: `input` is recorded, `operand` is computed with. Both are the original inputs while
 * autocast is off. NULL for NULL, and with the error set if a cast fails. They belong to the scope, or to the
 * leaves' copies, which are kept while autocast is on. */
void shard_autocast_product(int count, shard_tensor **input, shard_tensor **operand);

/* Saves an operand for the product's backward. If its memory can be evicted, its input is saved and cast again in
 * the backward, as a copy would stay. */
void shard_save_operand(shard_node *node, int slot, shard_tensor *input, shard_tensor *operand);
/* In backward: the saved operand, in the product's type. NULL with the error set. */
shard_tensor *shard_saved_operand(shard_node *node, int slot, shard_dtype dtype);

/* While autocast is on, casts x of 16 bits to float32: for operations that need its range. */
shard_tensor *shard_autocast_wide(shard_tensor *x);

/* Casts the tensors to the widest of their floating types while autocast is on; ignores NULLs and other types. A
 * tensor whose cast fails is unchanged, and shard_check_operands refuses it. */
void shard_autocast_promote(int count, shard_tensor **x);

#endif
