/*
 * Fibers: stacks of their own between which one thread switches. Each runs the same
 * function over and over, and is idle whenever that has returned.
 */
#ifndef CUDA_EMULATION_FIBER_H
#define CUDA_EMULATION_FIBER_H

namespace emulation
{

struct Fiber;

/* What every fiber runs; before the first resume. */
void set_fiber_function(void (*function)(Fiber *self));

/* An idle fiber; the one that became idle last, whose stack is in the cache. */
Fiber *idle_fiber();

/* From outside: runs the fiber until it suspends or its function returns. */
void resume(Fiber *fiber);
/* From inside: back to who resumed a fiber. */
void suspend(Fiber *self);
/* From inside: to another that is idle or has suspended, without the way over who resumed this one. */
void hand_over(Fiber *self, Fiber *to);

} // namespace emulation

#endif
