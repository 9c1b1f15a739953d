/* Scopes, for the folders right of this one. */
#ifndef SHARD_TENSOR_SCOPE_H
#define SHARD_TENSOR_SCOPE_H

#include "tensor/tensor.h"

/* Gives a new tensor's first share to the innermost scope, if one is open. */
void shard_scope_adopt(shard_tensor *tensor);

/* A tensor that was made outside of any scope is freed. */
void shard_scope_count_freed(void);

/* A function that works inside a scope of its own hands its result out to the
 * scope around it. Tensors of other scopes (an input passed through) stay there. */
shard_tensor *shard_scope_hand_out(shard_tensor *tensor, shard_scope *from);

#endif
