/* The command line: the table of its options, and which of them fit together. */
#include "options.h"

#include "options_torch.h"

#include <shard/models/resnet.h>

#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

static const command_choice stems[] = {{"imagenet", SHARD_RESNET_STEM_IMAGENET}, {"small", SHARD_RESNET_STEM_SMALL}, {NULL, 0}};
static const command_choice splits[] = {{"row", SHARD_SPLIT_ROW},  {"column", SHARD_SPLIT_COLUMN}, {"0", SHARD_SPLIT_ROW},
                                        {"1", SHARD_SPLIT_COLUMN}, {"-1", SHARD_SPLIT_COLUMN},     {NULL, 0}};
static const command_choice heads[] = {{"auto", HEAD_AUTO}, {"fused", HEAD_FUSED}, {"plain", HEAD_PLAIN}, {NULL, 0}};
static const command_choice dtypes[] = {{"float32", SHARD_FLOAT32}, {"float64", SHARD_FLOAT64}, {NULL, 0}};

#define AT(field) .offset = offsetof(options, field)
#define MOST_WHOLE COMMAND_MOST_WHOLE
#define OPTIONS_CROP_SCALE 0.08

static const command_option table[] = {
    {COMMAND_HEADING, "Model", NULL},
    {COMMAND_TEXT, "arch", "resnet18, resnet34, resnet50, resnet101 or resnet152", "ARCH", .letter = 'a', AT(arch)},
    {COMMAND_CHOICE, "stem", "imagenet: 7x7 with stride 2, and a pooling; small: 3x3, no pooling, for images of 32 to 64 pixels",
     "STEM", AT(stem), .choices = stems},
    {COMMAND_WHOLE, "width", "channels of the first stage; the others have 2, 4 and 8 times as many", "N", AT(width), .least = 1,
     .most = 65536},
    {COMMAND_WHOLE, "num-classes", "outputs of the last layer; 0: as many as DIR/train has, 1000 for synthetic images", "N",
     AT(num_classes), .most = MOST_WHOLE},
    {COMMAND_TEXT, "pretrained",
     "begin with the values of a torchvision state dict or of a checkpoint (.safetensors), whose names must be the "
     "model's",
     "FILE", AT(pretrained), .same = COMMAND_SAME_PRESENCE},
    {COMMAND_TEXT, "pretrained-skip",
     "layers (fc, or fc,head) that are not taken from --pretrained's FILE: those of the model begin anew, those of FILE are "
     "left out. For another number of classes: fc",
     "LAYERS", AT(pretrained_skip)},

    {COMMAND_HEADING, "Images", NULL},
    {COMMAND_WHOLE, "synthetic", "instead of DIR: N synthetic images for training, and a tenth of that for validation", "N",
     AT(synthetic), .most = 1e15},
    {COMMAND_WHOLE, "image-size", "pixels of a side that the network sees", "N", AT(image_size), .least = 1, .most = 65536},
    {COMMAND_NUMBER, "crop-scale", "training crops cover at least this part of the image's area", "X", AT(crop_scale),
     .least = 0.01, .most = 1},
    {COMMAND_NUMBER, "shift",
     "instead of crops: each edge of the image moves by up to this part of a side (for characters and the "
     "like, which a crop would cut)",
     "X", AT(shift), .most = 0.49},
    {COMMAND_FLAG, "no-flip", "do not mirror images (characters must not be)", AT(no_flip)},
    {COMMAND_WHOLE, "workers", "threads of each rank that load images", "N", .letter = 'j', AT(workers), .same = COMMAND_SAME_NOT,
     .most = 1024},
    {COMMAND_WHOLE, "skip-bad-images", "let up to N damaged images of an epoch pass; each is printed with its path", "N",
     AT(skip_bad_images), .most = MOST_WHOLE},

    {COMMAND_HEADING, "Computing", NULL},
    TRAINING_DEVICE_ROW(options, training),
    {COMMAND_CHOICE, "dtype", "of weights and values: float32, or float64 to compare runs closely", "DTYPE", AT(training.dtype),
     .choices = dtypes},
    TRAINING_COMPUTING_ROWS(options, training),
    {COMMAND_FLAG, "cuda-graph",
     "capture a training step in a CUDA graph and replay it for each full batch, so that the host launches one thing a step: for "
     "small images. One rank, without fp16, ZeRO and --accumulate",
     AT(cuda_graph)},
    {COMMAND_FLAG, "sync-bn", "batch norms see the whole job's batch", AT(sync_bn)},

    {COMMAND_HEADING, "Last layer", NULL},
    HEAD_ROWS(options, head),
    {COMMAND_CHOICE, "model-parallel-dim", "row (or 0): its inputs are split; column (or 1, -1): its outputs", "DIM",
     AT(model_parallel_dim), .choices = splits},
    {COMMAND_FLAG, "same-batch-in-group", "the ranks of a model group have the same images, and gather no features",
     AT(same_batch_in_group)},
    {COMMAND_CHOICE, "head",
     "last layer. fused: a classifier, which computes loss and update with neither logits nor the gradient of its weight in "
     "memory; plain: a linear layer; auto: fused if the layer is split by column and that saves memory",
     "KIND", AT(head_kind), .choices = heads},
    MARGIN_ROWS(options, margin),

    {COMMAND_HEADING, "Training", NULL},
    TRAINING_ROWS(options, training, "images"),
    {COMMAND_WHOLE, "accumulate", "a step's batch goes through the model in N parts, for less memory", "N", AT(accumulate),
     .least = 1, .most = 1e9},
    {COMMAND_NUMBER, "label-smoothing", "part of each label that is spread evenly over all classes", "X", AT(label_smoothing),
     .most = 1},
    TRAINING_NON_FINITE_ROW(options, training),

    {COMMAND_HEADING, "Validation and files", NULL},
    TRAINING_VALIDATION_ROWS(options, training, "--resume or --pretrained"),
    TRAINING_FILE_ROWS(options, training),
    TRAINING_SAVE_ASYNC_ROW(options, training),
    TRAINING_CHECK_REPLICAS_ROW(options, training),
    {COMMAND_HELP, "help", "print this", .letter = 'h', AT(help)},
};

static const options defaults = {
    .workers = 4,
    .image_size = 224,
    .width = OPTIONS_WIDTH,
    .crop_scale = OPTIONS_CROP_SCALE,
    .arch = "resnet50",
    .model_parallel_dim = SHARD_SPLIT_COLUMN,
    .head = {.dtype = HEAD_DTYPE_SAME, .rounding = SHARD_ROUNDING_STOCHASTIC, .stash = HEAD_STASH},
    .margin = MARGIN_DEFAULTS,
    .accumulate = 1,
    .training = {TRAINING_DEFAULTS, .epochs = 90, .batch = 256, .lr = 0.1, .weight_decay = 1e-4,
                 .lr_schedule = SHARD_SCHEDULE_STEP},
};

const command_line options_line = {
    .options = table,
    .count = (int)(sizeof table / sizeof *table),
    .defaults = &defaults,
    .bytes = sizeof defaults,
    .operand = "DIR",
    .operand_offset = offsetof(options, directory),
    .usage = "Usage: imagenet [options] DIR\n"
             "  or:  shardrun -n 4 imagenet --enable-model-parallel [options] DIR\n\n"
             "Trains a ResNet on the images in DIR/train/<class>/*.{jpg,png} and validates it on those in\n"
             "DIR/val, on one rank or on all that shardrun, mpirun or srun start. The last layer can be split\n"
             "over ranks. The same images meet in the same step on any number of ranks. Defaults are in\n"
             "parentheses.\n",
    .closing = "\nThe other options of pytorch/examples' imagenet, as --world-size, are taken too: a line says what to write "
               "instead.\n"
               "\nCtrl-C finishes the step, saves a checkpoint if there is an --output, and ends; a second one ends at once.\n",
    .foreign = torch_options,
    .foreign_count = TORCH_OPTIONS,
    .notes_offset = offsetof(options, notes),
};

/* ---- which fit together ---- */

static shard_status check_model(const options *parsed)
{
    if (!shard_resnet_exists(parsed->arch))
        return shard_error(SHARD_ERROR_ARGUMENT, "--arch: there is no \"%s\"; there are %s", parsed->arch, shard_resnet_names());
    if (parsed->directory && parsed->synthetic)
        return shard_error(SHARD_ERROR_ARGUMENT, "either DIR or --synthetic N, not both");
    if (!parsed->directory && !parsed->synthetic && parsed->pretrained)
        return shard_error(SHARD_ERROR_ARGUMENT,
                           "give a DIR with train/ and val/, or --synthetic N (\"%s\" is --pretrained's FILE); see --help",
                           parsed->pretrained);
    if (!parsed->directory && !parsed->synthetic)
        return shard_error(SHARD_ERROR_ARGUMENT, "give a DIR with train/ and val/, or --synthetic N; see --help");
    if (parsed->training.batch % parsed->accumulate != 0)
        return shard_error(SHARD_ERROR_ARGUMENT, "--accumulate %" PRId64 ": a batch of %" PRId64 " is not that many equal parts",
                           parsed->accumulate, parsed->training.batch);
    if (parsed->shift > 0 && parsed->crop_scale != OPTIONS_CROP_SCALE)
        return shard_error(SHARD_ERROR_ARGUMENT, "--shift takes the place of crops: leave --crop-scale out, or --shift");
    if (parsed->training.resume && parsed->pretrained && !training_resumes_auto(&parsed->training))
        return shard_error(SHARD_ERROR_ARGUMENT, "either --resume FILE or --pretrained, not both");
    if (parsed->pretrained_skip && !parsed->pretrained)
        return shard_error(SHARD_ERROR_ARGUMENT, "--pretrained-skip needs --pretrained");
    if (parsed->training.evaluate && !parsed->training.resume && !parsed->pretrained)
        return shard_error(SHARD_ERROR_ARGUMENT, "--evaluate needs a model: give --resume or --pretrained");
    return SHARD_OK;
}

/* The last layer's options. */
static shard_status check_head(const options *parsed)
{
    bool by_row = parsed->head.enable_model_parallel && parsed->model_parallel_dim == SHARD_SPLIT_ROW;
    bool rowwise = parsed->head.optimizer >= HEAD_ROWWISE_ADAGRAD, samples = parsed->margin.sample_rate < 1;
    if (parsed->head_kind == HEAD_FUSED && by_row)
        return shard_error(SHARD_ERROR_ARGUMENT,
                           "--head fused is for a last layer that is whole or split by column: take --model-parallel-dim column, "
                           "or --head plain");
    if (parsed->same_batch_in_group && !parsed->head.enable_model_parallel)
        return shard_error(SHARD_ERROR_ARGUMENT, "--same-batch-in-group needs --enable-model-parallel");
    if (parsed->model_parallel_dim == SHARD_SPLIT_ROW && !parsed->head.enable_model_parallel)
        return shard_error(SHARD_ERROR_ARGUMENT, "--model-parallel-dim row needs --enable-model-parallel");
    if (rowwise && by_row)
        return shard_error(SHARD_ERROR_ARGUMENT,
                           "--head-optimizer %s needs whole rows on a rank: take --model-parallel-dim column, or adamw",
                           head_optimizer_name(&parsed->head, &parsed->training));
    if (samples && by_row)
        return shard_error(SHARD_ERROR_ARGUMENT, "--sample-rate is for a last layer that is whole or split by column: take "
                                                 "--model-parallel-dim column");
    if (samples && parsed->head_kind == HEAD_PLAIN)
        return shard_error(SHARD_ERROR_ARGUMENT, "--sample-rate needs a classifier: take --head fused, or leave --head out");
    const char *own = parsed->head.dtype != HEAD_DTYPE_SAME           ? "--head-dtype"
                      : parsed->head.optimizer || parsed->head.lr > 0 ? "--head-optimizer and --head-lr"
                      : samples                                       ? "--sample-rate"
                      : parsed->head_kind == HEAD_FUSED               ? "--head fused"
                                                                      : NULL;
    if (own && parsed->cuda_graph)
        return shard_error(SHARD_ERROR_ARGUMENT,
                           "--cuda-graph captures the step of a plain last layer with the run's optimizer: leave it out, or %s",
                           own);
    return SHARD_OK;
}

shard_status options_check(void *values)
{
    options *parsed = values;
    if (parsed->dummy) /* as pytorch/examples */
        parsed->directory = NULL;
    shard_status status = check_model(parsed);
    if (status == SHARD_OK)
        status = training_options_check(&parsed->training);
    if (status == SHARD_OK)
        status = head_options_check(&parsed->head, &parsed->training);
    if (status == SHARD_OK)
        status = margin_options_read(&parsed->margin);
    if (status == SHARD_OK)
        status = margin_options_check_stash(&parsed->margin, &parsed->head);
    if (status == SHARD_OK && parsed->head_kind == HEAD_PLAIN)
        status = head_options_check_stash(&parsed->head, "--head plain");
    return status == SHARD_OK ? check_head(parsed) : status;
}

const char *options_stem_name(const options *parsed)
{
    return command_choice_name(stems, parsed->stem);
}
