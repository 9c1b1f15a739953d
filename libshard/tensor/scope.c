/* Scopes: release the tensors that are made inside of them. */
#include "tensor/scope.h"

#include "base/log.h"

static _Thread_local shard_scope *innermost;

/* This many tensors outside of any scope are more likely forgotten than parameters. */
#define MANY_UNSCOPED 10000

static _Thread_local int64_t unscoped;
static _Thread_local bool has_warned;

static void count_unscoped(shard_tensor *tensor)
{
    tensor->unscoped = true;
    if (++unscoped < MANY_UNSCOPED || has_warned)
        return;
    has_warned = true;
    shard_log_message(SHARD_LOG_WARN,
                      "%d tensors of this thread were made outside of a scope and not released: call shard_release, or "
                      "put each step of a loop into SHARD_SCOPE { ... }, which frees what is made inside",
                      MANY_UNSCOPED);
}

void shard_scope_forget_unscoped(shard_tensor *tensor)
{
    unscoped -= tensor->unscoped;
    tensor->unscoped = false;
}

void shard_scope_open(shard_scope *scope)
{
    if (!scope) {
        shard_null_argument("shard_scope_open", "scope");
        return;
    }
    *scope = (shard_scope){.outer = innermost, .open = 1};
    innermost = scope;
}

/* Also runs for a scope that was never entered (open < 0). */
void shard_scope_close(shard_scope *scope)
{
    if (!scope || scope->open != 1)
        return;
    scope->open = 0;
    innermost = scope->outer;
    while (scope->first)
        shard_release(scope->first);
}

void shard_scope_adopt(shard_tensor *tensor)
{
    tensor->scope = innermost;
    if (!innermost) {
        count_unscoped(tensor);
        return;
    }
    tensor->next = innermost->first;
    if (innermost->first)
        innermost->first->previous = tensor;
    innermost->first = tensor;
}

shard_tensor *shard_keep(shard_tensor *tensor)
{
    if (!tensor)
        return NULL;
    shard_scope_forget_unscoped(tensor);
    if (!tensor->scope)
        return tensor;
    if (tensor->previous)
        tensor->previous->next = tensor->next;
    else
        tensor->scope->first = tensor->next;
    if (tensor->next)
        tensor->next->previous = tensor->previous;
    tensor->next = tensor->previous = NULL;
    tensor->scope = NULL;
    return tensor;
}

shard_tensor *shard_scope_return(shard_tensor *tensor, shard_scope *from)
{
    if (!tensor || tensor->scope != from)
        return tensor;
    shard_keep(tensor);
    shard_scope *inner = innermost;
    innermost = from->outer;
    shard_scope_adopt(tensor);
    innermost = inner;
    return tensor;
}

void shard_release(shard_tensor *tensor)
{
    if (tensor)
        shard_tensor_unref(shard_keep(tensor));
}
