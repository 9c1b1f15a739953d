/* The command line: the table of its options, and which of them fit together. */
#include "options.h"

#include <stddef.h>

#define AT(field) .offset = offsetof(options, field)

static const char *const archs[] = {"iresnet18", "iresnet34", "iresnet50", "iresnet100", "iresnet200"};
static const command_choice networks[] = {{"r18", 0}, {"r34", 1}, {"r50", 2}, {"r100", 3}, {"r200", 4}, {NULL, 0}};

static const command_option table[] = {
    {COMMAND_HEADING, "Model", NULL},
    {COMMAND_CHOICE, "network", "iResNet: r18, r34, r50, r100 or r200", "NETWORK", AT(network), .choices = networks},
    {COMMAND_WHOLE, "embedding-size", "numbers of a feature", "N", AT(embedding_size), .least = 1, .most = 65536},
    {COMMAND_WHOLE, "width", "channels of the first stage; the others have 2, 4 and 8 times as many", "N", AT(width), .least = 1,
     .most = 65536},
    {COMMAND_NUMBER, "dropout", "before the layer that makes features", "P", AT(dropout), .most = 0.99},
    {COMMAND_TEXT, "pretrained",
     "begin with the values of a backbone, and of a classifier if it is there: a file of import-insightface, a "
     "model.safetensors, "
     "or a backbone's state dict with insightface's names",
     "FILE", AT(pretrained), .same = COMMAND_SAME_PRESENCE},

    {COMMAND_HEADING, "Images", NULL},
    {COMMAND_WHOLE, "image-size", "pixels of a side that the network sees", "N", AT(image_size), .least = 1, .most = 4096},
    {COMMAND_FLAG, "no-flip", "do not mirror images (characters must not be)", AT(no_flip)},
    {COMMAND_NUMBER, "shift",
     "instead of crops: each edge of the image moves by up to this part of a side (for characters and the "
     "like, which a crop would cut)",
     "X", AT(shift), .most = 0.49},
    {COMMAND_WHOLE, "workers", "threads of each rank that load images", "N", .letter = 'j', AT(workers), .same = COMMAND_SAME_NOT,
     .most = 1024},
    {COMMAND_WHOLE, "skip-bad-images",
     "let up to N damaged images of an epoch's training pass; each is printed with its path. In validation one ends the run", "N",
     AT(skip_bad_images), .most = COMMAND_MOST_WHOLE},

    {COMMAND_HEADING, "Computing", NULL},
    TRAINING_DEVICE_ROW(options, training),
    TRAINING_COMPUTING_ROWS(options, training),
    {COMMAND_FLAG, "sync-bn", "batch norms see the whole job's batch", AT(sync_bn)},

    {COMMAND_HEADING, "Classifier", NULL},
    MARGIN_ROWS(options, margin),
    HEAD_ROWS(options, head),

    {COMMAND_HEADING, "Training", NULL},
    TRAINING_ROWS(options, training, "images"),
    TRAINING_NON_FINITE_ROW(options, training),

    {COMMAND_HEADING, "Validation and files", NULL},
    TRAINING_VALIDATION_ROWS(options, training, "--resume or --pretrained"),
    {COMMAND_TEXT, "val-targets",
     "files of pairs in DIR, lfw,cfp_fp,agedb_30 for DIR/lfw.bin and so on. DIR/val, a folder of other identities, is always a "
     "target if it is there",
     "NAMES", AT(val_targets)},
    {COMMAND_WHOLE, "impostors", "pairs of two identities that are drawn from DIR/val", "N", AT(impostors), .least = 1,
     .most = 1e9},
    TRAINING_FILE_ROWS(options, training),
    TRAINING_SAVE_ASYNC_ROW(options, training),
    TRAINING_CHECK_REPLICAS_ROW(options, training),
    {COMMAND_HELP, "help", "print this", .letter = 'h', AT(help)},
};

static const options defaults = {
    .network = 2,
    .embedding_size = 512,
    .width = 64,
    .image_size = 112,
    .workers = 2,
    .impostors = 1000000,
    .training = {TRAINING_DEFAULTS, .epochs = 20, .batch = 128, .optimizer = TRAINING_SGD, .lr = 0.1, .weight_decay = 5e-4,
                 .clip_grad = 5, .lr_schedule = SHARD_SCHEDULE_COSINE, .seed = 2048},
    .head = HEAD_DEFAULTS,
    .margin = {.text = "arcface:0.5", .scale = 64, .sample_rate = 1},
};

const command_line options_line = {
    .options = table,
    .count = (int)(sizeof table / sizeof *table),
    .defaults = &defaults,
    .bytes = sizeof defaults,
    .operand = "DIR",
    .operand_offset = offsetof(options, directory),
    .usage = "Usage: arcface [options] DIR\n"
             "  or:  shardrun -n 4 arcface --enable-model-parallel [options] DIR\n\n"
             "Trains a network whose features tell identities apart, by a classifier with a margin, exact or sampled, and\n"
             "measures verification and search. DIR has train.rec and train.idx, as insightface's data sets, or\n"
             "train/<identity>/ with JPEG or PNG files. The classifier can be split over ranks. The same images meet in\n"
             "the same step on any number of ranks. Defaults are in parentheses.\n",
    .closing = "\nCtrl-C finishes the step, saves a checkpoint if there is an --output, and ends; a second one ends at once.\n",
};

const char *options_arch(const options *wanted)
{
    return archs[wanted->network];
}

shard_status options_check(void *values)
{
    options *parsed = values;
    shard_status status = training_options_check(&parsed->training);
    if (status == SHARD_OK)
        status = head_options_check(&parsed->head, &parsed->training);
    if (status == SHARD_OK)
        status = margin_options_read(&parsed->margin);
    if (status == SHARD_OK)
        status = margin_options_check_stash(&parsed->margin, &parsed->head);
    if (status != SHARD_OK)
        return status;
    if (!parsed->directory)
        return shard_error(SHARD_ERROR_ARGUMENT, "give a DIR with train.rec and train.idx, or with train/; see --help");
    if (parsed->training.evaluate && !parsed->training.resume && !parsed->pretrained)
        return shard_error(SHARD_ERROR_ARGUMENT, "--evaluate needs a model: give --resume or --pretrained its FILE");
    if (parsed->training.resume && parsed->pretrained && !training_resumes_auto(&parsed->training))
        return shard_error(SHARD_ERROR_ARGUMENT, "--pretrained begins a run, --resume goes on with one: give one of them");
    if (head_is_layerwise(&parsed->head, &parsed->training) && parsed->margin.sample_rate < 1)
        return shard_error(SHARD_ERROR_ARGUMENT,
                           "--sample-rate: %s moves all rows of the classifier; give it a --head-optimizer, as momentum",
                           training_optimizer_name(&parsed->training));
    return SHARD_OK;
}
