/* The command line: the table of its options, and which of them fit together. */
#include "options.h"

#define AT(field) .offset = offsetof(options, field)

static const command_option table[] = {
    {COMMAND_HEADING, "Model", NULL},
    {COMMAND_WHOLE, "features", "rows of the table that n-grams are hashed to", "N", AT(features), .least = 2, .most = 16777216},
    {COMMAND_WHOLE, "dim", "numbers of a word's feature, the input of the last layer", "N", AT(dim), .least = 1, .most = 65536},
    {COMMAND_WHOLE, "channels", "of the convolution over a word's bytes; 0: none", "N", AT(channels), .most = 65536},
    {COMMAND_NUMBER, "scale", "norm of a word's feature", "X", AT(scale), .least = 0.001, .most = 1e6},

    {COMMAND_HEADING, "Computing", NULL},
    TRAINING_DEVICE_ROW(options, training),
    TRAINING_COMPUTING_ROWS(options, training),

    {COMMAND_HEADING, "Last layer", NULL},
    HEAD_ROWS(options, head),
    SAMPLE_RATE_ROW(options, sample_rate),

    {COMMAND_HEADING, "Training", NULL},
    {COMMAND_WHOLE, "pairs", "of an epoch, made by the noise model; 0: as many as words", "N", AT(pairs), .most = 1e12},
    {COMMAND_NUMBER, "uniform", "part of the pairs whose words are drawn evenly; the others are by their count", "X", AT(uniform),
     .most = 1},
    {COMMAND_NUMBER, "power", "others are drawn with chances of count^X", "X", AT(power), .most = 4},
    {COMMAND_WHOLE, "tied-epochs",
     "epochs in which the encoder alone trains: a class's row is the feature of its word, and the softmax is over the words of "
     "the batch. The last layer begins with these rows",
     "N", AT(tied_epochs), .most = 1e9},
    {COMMAND_WHOLE, "neighbours",
     "adjacent words of the dictionary of which a batch of tied epochs has pairs; 1: independent words", "N", AT(neighbours),
     .least = 1, .most = 1024},
    TRAINING_ROWS(options, training, "pairs"),
    TRAINING_NON_FINITE_ROW(options, training),

    {COMMAND_HEADING, "Validation and files", NULL},
    TRAINING_VALIDATION_ROWS(options, training, "--resume"),
    {COMMAND_FLAG, "correct", "correct words of standard input by the model of --resume, on one rank", .letter = 'c',
     AT(correct)},
    {COMMAND_WHOLE, "top-k", "corrections that --correct prints for a word", "N", .letter = 'k', AT(top_k), .least = 1,
     .most = 1000},
    TRAINING_FILE_ROWS(options, training),
    TRAINING_SAVE_ASYNC_ROW(options, training),
    TRAINING_CHECK_REPLICAS_ROW(options, training),
    {COMMAND_HELP, "help", "print this", .letter = 'h', AT(help)},
};

static const options defaults = {
    .features = 32768,
    .dim = 128,
    .channels = 128,
    .scale = 40,
    .uniform = 0.3,
    .power = 0.5,
    .tied_epochs = 1,
    .neighbours = 8,
    .sample_rate = 1,
    .training = {TRAINING_DEFAULTS, .epochs = 2, .batch = 512, .optimizer = TRAINING_ADAM, .lr = 0.008,
                 .lr_schedule = SHARD_SCHEDULE_COSINE},
    .head = HEAD_DEFAULTS,
    .top_k = 5,
};

const command_line options_line = {
    .options = table,
    .count = (int)(sizeof table / sizeof *table),
    .defaults = &defaults,
    .bytes = sizeof defaults,
    .operand = "DIR",
    .operand_offset = offsetof(options, directory),
    .usage =
        "Usage: spell [options] DIR\n"
        "  or:  shardrun -n 2 spell --enable-model-parallel [options] DIR\n\n"
        "Trains a network that corrects misspelled words: the classes are the words of DIR/words.txt, of which there may be\n"
        "millions, and the training pairs are made of them by a noise model. Validation is on DIR/test.txt, if it is there.\n"
        "projects/spell/prepare makes both files. The last layer can be split over ranks. A step has the same pairs on any\n"
        "number of ranks. spell --correct --resume FILE DIR < words prints corrections. Defaults are in parentheses.\n",
    .closing = "\nCtrl-C finishes the step, saves a checkpoint if there is an --output, and ends; a second one ends at once.\n",
};

bool options_train(const options *wanted)
{
    return !wanted->training.evaluate && !wanted->correct;
}

shard_status options_check(void *values)
{
    const options *parsed = values;
    const char *mode = parsed->correct ? "correct" : "evaluate";
    shard_status status = training_options_check(&parsed->training);
    if (status == SHARD_OK)
        status = head_options_check(&parsed->head, &parsed->training);
    if (status != SHARD_OK)
        return status;
    if (!parsed->directory)
        return shard_error(SHARD_ERROR_ARGUMENT, "give a DIR with words.txt; see --help");
    if (parsed->training.evaluate && parsed->correct)
        return shard_error(SHARD_ERROR_ARGUMENT, "--evaluate or --correct, not both");
    if (!options_train(parsed) && (!parsed->training.resume || training_resumes_auto(&parsed->training)))
        return shard_error(SHARD_ERROR_ARGUMENT, "--%s needs a model: give --resume its FILE", mode);
    if (parsed->top_k != defaults.top_k && !parsed->correct)
        return shard_error(SHARD_ERROR_ARGUMENT, "--top-k needs --correct, which prints so many corrections");
    if (parsed->correct && parsed->training.output)
        return shard_error(SHARD_ERROR_ARGUMENT, "--correct writes no checkpoint: leave --output out");
    if (parsed->correct && (parsed->training.metrics || parsed->training.tensorboard))
        return shard_error(SHARD_ERROR_ARGUMENT, "--correct measures nothing: leave --%s out",
                           parsed->training.metrics ? "metrics" : "tensorboard");
    return head_options_check_stash(&parsed->head, parsed->sample_rate < 1 ? "--sample-rate" : NULL);
}
