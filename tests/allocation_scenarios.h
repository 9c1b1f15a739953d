/* Small programs of one rank, which together call every public function: tests/test_allocations.c runs each without memory for
 * one allocation after the other. */
#ifndef TESTS_ALLOCATION_SCENARIOS_H
#define TESTS_ALLOCATION_SCENARIOS_H

typedef struct allocation_scenario {
    const char *name;
    void (*run)(void); /* goes on after an error, as programs do, and destroys all that it makes */
} allocation_scenario;

extern const allocation_scenario allocation_scenarios[];
extern const int allocation_scenario_count;

/* The sum of what the last scenario has computed: the same in every run without an error. */
extern double scenario_sum;

/* A path of a file for scenarios. */
extern char scenario_folder[400];

#endif
