/* Ctrl-C: the first one asks the run to finish its step and save, a second one ends it at once. */
#ifndef COMMON_INTERRUPT_H
#define COMMON_INTERRUPT_H

/* Handles SIGINT and SIGTERM. */
void interrupt_watch(void);

/* The signal that was received, 0 if none. */
int interrupt_signal(void);

#endif
