/* Ctrl-C: the first asks the run to finish its step and save, a second one ends it at once. */
#ifndef IMAGENET_INTERRUPT_H
#define IMAGENET_INTERRUPT_H

/* Takes over SIGINT and SIGTERM. */
void interrupt_watch(void);

/* The signal that has come, 0 if none has. */
int interrupt_signal(void);

#endif
