#include "support/background.h"

#include "support/check.h"
#include "support/file_calls.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

static pthread_t program; /* the thread that saves */
static _Atomic bool held;

/* A thread that is held for too long goes on, and the test fails by what it finds then. */
static ssize_t hold(const file_call *call)
{
    for (int waited = 0; atomic_load(&held) && !pthread_equal(pthread_self(), program) && waited < 60000; waited++)
        usleep(500);
    return call->kind == CALL_FSYNC ? CALL_LEAVE : CALL_MAKE;
}

void background_hold(void)
{
    program = pthread_self();
    atomic_store(&held, true);
    file_calls_watch(hold);
}

void background_go_on(void)
{
    atomic_store(&held, false);
}

void background_end(void)
{
    file_calls_watch(NULL);
}
