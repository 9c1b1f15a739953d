/* Holds the threads of asynchronous saves at their first call of the system, so that a test knows what happens before it. */
#ifndef TESTS_SUPPORT_BACKGROUND_H
#define TESTS_SUPPORT_BACKGROUND_H

/* Called by the thread that saves, before the save begins. */
void background_hold(void);
/* The threads go on. */
void background_go_on(void);
/* After all saves are finished: the system's calls are the system's again. */
void background_end(void);

#endif
