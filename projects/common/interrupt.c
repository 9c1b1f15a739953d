/*
 * Launchers pass a Ctrl-C on to ranks that already have it from the terminal, so signals within half a second of the
 * first one count as the same one.
 */
#include "interrupt.h"

#include <signal.h>
#include <stddef.h>
#include <time.h>
#include <unistd.h>

#define SAME_SECONDS 0.5

static volatile sig_atomic_t first_signal;
static struct timespec first_time;

static void on_signal(int number)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (!first_signal) {
        first_time = now;
        first_signal = number;
        return;
    }
    double seconds = (double)(now.tv_sec - first_time.tv_sec) + 1e-9 * (double)(now.tv_nsec - first_time.tv_nsec);
    if (seconds > SAME_SECONDS)
        _exit(128 + number);
}

static const int watched[] = {SIGINT, SIGTERM, SIGHUP};

void interrupt_watch(void)
{
    struct sigaction before, action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    for (int i = 0; i < 3; i++)
        sigaddset(&action.sa_mask, watched[i]);
    for (int i = 0; i < 3; i++)
        if (watched[i] != SIGHUP || (sigaction(SIGHUP, NULL, &before) == 0 && before.sa_handler != SIG_IGN)) /* nohup's stays */
            sigaction(watched[i], &action, NULL);
}

void interrupt_unwatch(void)
{
    struct sigaction set;
    for (int i = 0; i < 3; i++)
        if (sigaction(watched[i], NULL, &set) == 0 && set.sa_handler == on_signal)
            signal(watched[i], SIG_DFL);
    if (first_signal)
        raise(first_signal);
}

int interrupt_signal(void)
{
    return first_signal;
}
