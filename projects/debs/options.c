/* The command line: the table of its options, and which of them fit together. */
#include "options.h"

#include <inttypes.h>

#define AT(field) .offset = offsetof(options, field)

static const command_option table[] = {
    {COMMAND_HEADING, "Model", NULL},
    {COMMAND_WHOLE, "hidden", "units of a hidden layer", "N", AT(hidden), .least = 1, .most = 1048576},
    {COMMAND_WHOLE, "layers", "hidden layers; the first one sums rows of a table, one for each feature", "N", AT(layers),
     .least = 1, .most = 64},
    {COMMAND_NUMBER, "dropout", "of each hidden layer", "P", AT(dropout), .most = 0.99},
    {COMMAND_NUMBER, "feature-dropout", "of the points' features", "P", AT(feature_dropout), .most = 0.99},

    {COMMAND_HEADING, "Computing", NULL},
    TRAINING_DEVICE_ROW(options, training),
    TRAINING_COMPUTING_ROWS(options, training),

    {COMMAND_HEADING, "Last layer", NULL},
    HEAD_ROWS(options, head),

    {COMMAND_HEADING, "Training", NULL},
    TRAINING_ROWS(options, training, "points"),
    {COMMAND_WHOLE, "loss-every", "compute the loss in every Nth step, and in the last one before a save; gradients need none",
     "N", AT(loss_every), .least = 1, .most = 1000000000},
    TRAINING_NON_FINITE_ROW(options, training),

    {COMMAND_HEADING, "Validation and files", NULL},
    TRAINING_VALIDATION_ROWS(options, training, "--resume"),
    {COMMAND_NUMBER, "propensity-a", "A of the propensities: 0.55; 0.5 for Wikipedia, 0.6 for Amazon", "X", AT(propensity_a),
     .most = 100},
    {COMMAND_NUMBER, "propensity-b", "B of the propensities: 1.5; 0.4 for Wikipedia, 2.6 for Amazon", "X", AT(propensity_b),
     .most = 100},
    TRAINING_FILE_ROWS(options, training),
    TRAINING_SAVE_ASYNC_ROW(options, training),
    TRAINING_CHECK_REPLICAS_ROW(options, training),
    {COMMAND_HELP, "help", "print this", .letter = 'h', AT(help)},
};

static const options defaults = {
    .hidden = 256,
    .layers = 1,
    .dropout = 0.3,
    .feature_dropout = 0,
    .loss_every = 1,
    .propensity_a = 0.55,
    .propensity_b = 1.5,
    .training = {TRAINING_DEFAULTS, .epochs = 10, .batch = 256, .optimizer = TRAINING_ADAM, .lr = 0.001,
                 .lr_schedule = SHARD_SCHEDULE_COSINE},
    .head = HEAD_DEFAULTS,
};

const command_line options_line = {
    .options = table,
    .count = (int)(sizeof table / sizeof *table),
    .defaults = &defaults,
    .bytes = sizeof defaults,
    .operand = "DIR",
    .operand_offset = offsetof(options, directory),
    .usage = "Usage: debs [options] DIR\n"
             "  or:  shardrun -n 4 debs --enable-model-parallel [options] DIR\n\n"
             "Trains a network on DIR/train.txt that predicts the labels of a point, of which there may be millions, and\n"
             "measures it on DIR/test.txt. The files have the format of the Extreme Classification Repository;\n"
             "projects/debs/prepare makes them of Debian's packages. The last layer can be split over ranks. The same\n"
             "points meet in the same step on any number of ranks. Defaults are in parentheses.\n",
    .closing = "\nCtrl-C finishes the step, saves a checkpoint if there is an --output, and ends; a second one ends at once.\n",
};

shard_status options_check(void *values)
{
    const options *parsed = values;
    shard_status status = training_options_check(&parsed->training);
    if (status == SHARD_OK)
        status = head_options_check(&parsed->head, &parsed->training);
    if (status != SHARD_OK)
        return status;
    if (!parsed->directory)
        return shard_error(SHARD_ERROR_ARGUMENT, "give a DIR with train.txt and test.txt; see --help");
    if (parsed->training.evaluate && !parsed->training.resume)
        return shard_error(SHARD_ERROR_ARGUMENT, "--evaluate needs a model: give --resume its FILE");
    if (parsed->loss_every > 1 && parsed->training.non_finite == TRAINING_SKIP)
        return shard_error(SHARD_ERROR_ARGUMENT, "--non-finite skip reads the loss of each step: leave out --loss-every %" PRId64,
                           parsed->loss_every);
    return SHARD_OK;
}
