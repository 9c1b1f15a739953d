/* Scopes, for the folders that come after this one. */
#ifndef SHARD_TENSOR_SCOPE_H
#define SHARD_TENSOR_SCOPE_H

#include "tensor/tensor.h"

/* Adds a new tensor to the innermost scope, which takes over its first reference, if a scope is open. */
void shard_scope_adopt(shard_tensor *tensor);

/* A tensor was freed, or is kept on purpose: it does not count any more as one that was made outside of any scope. */
void shard_scope_forget_unscoped(shard_tensor *tensor);

/* Moves the result of a function from the function's own scope to the scope around it. A tensor of another scope (an
 * input that is passed through) stays there. */
shard_tensor *shard_scope_return(shard_tensor *tensor, shard_scope *from);

#endif
