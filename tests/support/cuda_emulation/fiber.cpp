/* Fibers: by a switch of our own on x86-64, which costs a few nanoseconds; elsewhere by ucontext. */
#include "fiber.h"

#include "emulation.h"

#include <sys/mman.h>

#include <vector>

#ifdef WITH_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

#ifdef __x86_64__
extern "C" void cuda_emulation_switch(void **save, void *to);
__asm__(".text\n"
        ".type cuda_emulation_switch, @function\n"
        "cuda_emulation_switch:\n"
        "    push %rbp\n    push %rbx\n    push %r12\n    push %r13\n    push %r14\n    push %r15\n"
        "    mov %rsp, (%rdi)\n"
        "    mov %rsi, %rsp\n"
        "    pop %r15\n    pop %r14\n    pop %r13\n    pop %r12\n    pop %rbx\n    pop %rbp\n"
        "    ret\n"
        ".size cuda_emulation_switch, . - cuda_emulation_switch\n");
#else
#include <ucontext.h>
#endif

namespace emulation
{

#ifdef WITH_ASAN
enum { STACK = 512 << 10 };
#else
enum { STACK = 128 << 10 };
#endif
enum { PAGE = 4096 };

struct Context {
#ifdef __x86_64__
    void *stack_pointer;
#else
    ucontext_t context;
#endif
    void *fake_stack; /* AddressSanitizer's */
    const void *bottom;
    size_t size;
};

struct Fiber {
    Context context;
};

static void (*fiber_function)(Fiber *);
static auto &idle = *new std::vector<Fiber *>; /* until the process ends: LeakSanitizer looks here */
static Context outside;
static Fiber *entered;
static Context *left; /* by the last switch */

/* AddressSanitizer learns after a switch on which stack it was, which is new where it comes from outside. */
#ifdef WITH_ASAN
static void arrive(void *fake_stack)
{
    bool from_outside = left == &outside;
    __sanitizer_finish_switch_fiber(fake_stack, from_outside ? &outside.bottom : nullptr, from_outside ? &outside.size : nullptr);
}
#endif

static void switch_to(Context *from, Context *to)
{
    left = from;
#ifdef WITH_ASAN
    __sanitizer_start_switch_fiber(&from->fake_stack, to->bottom, to->size);
#endif
#ifdef __x86_64__
    cuda_emulation_switch(&from->stack_pointer, to->stack_pointer);
#else
    swapcontext(&from->context, &to->context);
#endif
#ifdef WITH_ASAN
    arrive(from->fake_stack); /* a fiber may go on in another thread than the one that it began in */
#endif
}

static void enter()
{
    Fiber *self = entered;
#ifdef WITH_ASAN
    arrive(nullptr);
#endif
    for (;;) {
        fiber_function(self);
        idle.push_back(self);
        switch_to(&self->context, &outside);
    }
}

static Fiber *new_fiber()
{
    static int made;
    char *memory =
        (char *)mmap(nullptr, PAGE + STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, PAGE, PROT_NONE) != 0)
        die("no memory for the stacks of a block's threads");
    Fiber *fiber = new Fiber();
    fiber->context.bottom = memory + PAGE;
    fiber->context.size = STACK;
#ifdef __x86_64__
    /* Stacks begin at different places in their pages, or they would all want the same lines of the cache. */
    uintptr_t top = (uintptr_t)memory + PAGE + STACK - (uintptr_t)(made++ * 192 % 8192);
    void **at = (void **)(top & ~(uintptr_t)63);
    *--at = nullptr; /* where enter() would return to */
    *--at = (void *)enter;
    for (int i = 0; i < 6; i++)
        *--at = nullptr;
    fiber->context.stack_pointer = at;
#else
    made++;
    getcontext(&fiber->context.context);
    fiber->context.context.uc_stack.ss_sp = memory + PAGE;
    fiber->context.context.uc_stack.ss_size = STACK;
    fiber->context.context.uc_link = nullptr;
    makecontext(&fiber->context.context, enter, 0);
#endif
    return fiber;
}

void set_fiber_function(void (*function)(Fiber *self))
{
    fiber_function = function;
}

Fiber *idle_fiber()
{
    if (idle.empty())
        return new_fiber();
    Fiber *fiber = idle.back();
    idle.pop_back();
    return fiber;
}

void resume(Fiber *fiber)
{
    entered = fiber;
    switch_to(&outside, &fiber->context);
}

void suspend(Fiber *self)
{
    switch_to(&self->context, &outside);
}

void hand_over(Fiber *self, Fiber *to)
{
    entered = to;
    switch_to(&self->context, &to->context);
}

} // namespace emulation
