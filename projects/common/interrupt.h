/* Ctrl-C, or the end of its terminal: the first one asks the run to finish its step and save, a second one ends it at once. */
#ifndef COMMON_INTERRUPT_H
#define COMMON_INTERRUPT_H

/* Handles SIGINT, SIGTERM, and SIGHUP unless it is ignored, as under nohup. */
void interrupt_watch(void);

/* Each signal ends the program at once again, also one that was received since interrupt_watch: for a run that has nothing to
 * save, or that waits for input. */
void interrupt_unwatch(void);

/* The signal that was received, 0 if none. */
int interrupt_signal(void);

#endif
