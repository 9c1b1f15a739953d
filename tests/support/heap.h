/* Counts and fails the allocations of a test program that is linked with heap.c, which replaces malloc, or, under
 * AddressSanitizer, is called by its. */
#ifndef TESTS_SUPPORT_HEAP_H
#define TESTS_SUPPORT_HEAP_H

#include <stdbool.h>
#include <stddef.h>

/* Counts from here on, in all threads. Memory that is allocated while a block is moved counts twice. */
void heap_start(void);
/* The most bytes, since heap_start, that were allocated at one time and that the program has asked for since then. */
size_t heap_peak(void);

/* Whether heap_fail_after works: not under AddressSanitizer. */
bool heap_can_fail(void);
/* The next `count` allocations of this thread are made, those after them fail; -1: none fails. */
void heap_fail_after(int count);

#endif
