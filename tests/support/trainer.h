/*
 * projects/imagenet as its users run it: the program is started alone or by a launcher,
 * and what it writes to --metrics and --output is compared. The tests only start programs:
 * SHARDRUN and IMAGENET name them.
 */
#ifndef TEST_TRAINER_H
#define TEST_TRAINER_H

#include "support/check.h"

#include <stdbool.h>

/* Where the runs of a test program happen; what they print is added to "log" in it. */
extern char run_folder[64];

#define STEPS 20

/* A batch of 12 does not go into 62: the last of an epoch has 2, so that of four ranks
 * two have none, and of 2 x 2 groups one. */
#define RUN "-a resnet18 --stem small --width 8 --image-size 16 --synthetic 62 --num-classes 101 -b 12 --lr 1e-5 -j 1 --seed 7 "

/* What float32 may do to its loss in STEPS steps on another number of ranks. */
#define ROUNDING 1e-4

/* The folder alone, for runs on one thread a rank. drop_single removes it. */
void make_run_folder(void);

/* For a test case that lasts: the folder, and in it single.json and single/, the metrics and
 * checkpoints of STEPS steps of RUN on one rank. */
void make_single(void);
void drop_single(void);

int run_command(const char *command);

/* Runs `launcher imagenet options`. Its exit code. */
int run(const char *launcher, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* `shardrun -n ranks`; of one rank none. */
const char *shardrun(int ranks);

/* What stands in a file of the folder. */
char *text_of(const char *name);

#define check_runs(...) ck_assert_msg(run(__VA_ARGS__) == 0, "the trainer failed: %s", text_of("log"))

/* Removes a file of the folder, so that a run begins it. */
void drop_file(const char *name);

/* Empties what runs have printed. */
void drop_log(void);

/* A run that fails, and says so once, on all ranks together. */
void check_refused_on(int ranks, const char *pattern, const char *options);
void check_refused(const char *pattern, const char *options);

/* On images/ of the folder, which make_images fills: 3 classes of 4 training images and one for validation each. */
#define OWN_FOLDER_RUN "-a resnet18 --stem small --width 8 --image-size 16 -b 6 --epochs 1 --lr 0.02 --dtype float64 -j 2 "
#define FOLDER_RUN OWN_FOLDER_RUN "images "
void make_images(void);

/* ---- metrics ---- */

#define MOST_LINES 512
#define MOST_RANKS 8

typedef struct line {
    bool validation, left_out;
    int step, images, ranks;
    int rank_images[MOST_RANKS]; /* that went through each rank's model */
    double loss, top1, top5, peak_mib, grad_scale;
    char loss_text[32]; /* to compare to the bit */
} line;

/* The lines of a metrics file; their number. */
int read_metrics(const char *name, line *lines);

/* The same steps with the same top-1 and top-5, the losses to the tolerance. */
void check_metrics_agree(const char *name, const char *other, double tolerance);

#endif
