/*
 * The command line. One table says each option's name, kind, range and help; the
 * reading, the defaults in the help and the messages come from it.
 */
#include "options.h"

#include "agree.h"
#include "options_torch.h"

#include <shard/models/resnet.h>

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef enum kind { HEADING = 0, FLAG, TEXT, WHOLE, NUMBER, CHOICE } kind;

/* Whether ranks must have identical values. */
typedef enum same { SAME_VALUE = 0, SAME_PRESENCE, SAME_NOT } same;

typedef struct choice {
    const char *name; /* NULL ends the list */
    int value;
} choice;

typedef struct entry {
    kind kind;
    const char *name, *help; /* a heading: its text */
    const char *argument;    /* its name in the help */
    const char *also;        /* a second name, as pytorch/examples has it */
    size_t offset;
    double least, most;
    const choice *choices;
    const char *alone; /* its value without an argument; NULL: the argument is required */
    char letter;
    same same;
} entry;

static const choice stems[] = {{"imagenet", SHARD_RESNET_STEM_IMAGENET}, {"small", SHARD_RESNET_STEM_SMALL}, {NULL, 0}};
static const choice splits[] = {{"row", SHARD_SPLIT_ROW},  {"column", SHARD_SPLIT_COLUMN}, {"0", SHARD_SPLIT_ROW},
                                {"1", SHARD_SPLIT_COLUMN}, {"-1", SHARD_SPLIT_COLUMN},     {NULL, 0}};
static const choice heads[] = {{"auto", HEAD_AUTO}, {"fused", HEAD_FUSED}, {"plain", HEAD_PLAIN}, {NULL, 0}};
static const choice head_dtypes[] = {
    {"same", HEAD_DTYPE_SAME}, {"float32", SHARD_FLOAT32}, {"bfloat16", SHARD_BFLOAT16}, {NULL, 0}};
static const choice roundings[] = {
    {"nearest", SHARD_ROUNDING_NEAREST}, {"stochastic", SHARD_ROUNDING_STOCHASTIC}, {"kahan", SHARD_ROUNDING_KAHAN}, {NULL, 0}};
static const choice head_optimizers[] = {{"same", HEAD_OPTIMIZER_SAME},
                                         {"sgd", HEAD_OPTIMIZER_SGD},
                                         {"momentum", HEAD_OPTIMIZER_MOMENTUM},
                                         {"adamw", HEAD_OPTIMIZER_ADAMW},
                                         {"rowwise-adagrad", HEAD_OPTIMIZER_ROWWISE_ADAGRAD},
                                         {"rowwise-adam", HEAD_OPTIMIZER_ROWWISE_ADAM},
                                         {NULL, 0}};
static const choice policies[] = {{"stop", NON_FINITE_STOP}, {"skip", NON_FINITE_SKIP}, {NULL, 0}};
static const choice dtypes[] = {{"float32", SHARD_FLOAT32}, {"float64", SHARD_FLOAT64}, {NULL, 0}};
static const choice amps[] = {{"none", SHARD_FLOAT32}, {"bf16", SHARD_BFLOAT16}, {"fp16", SHARD_FLOAT16}, {NULL, 0}};
static const choice stages[] = {{"none", 0}, {"1", 1}, {"2", 2}, {"3", 3}, {NULL, 0}};
static const choice optimizers[] = {{"sgd", OPTIMIZER_SGD},   {"adam", OPTIMIZER_ADAM}, {"adamw", OPTIMIZER_ADAMW},
                                    {"lars", OPTIMIZER_LARS}, {"lamb", OPTIMIZER_LAMB}, {NULL, 0}};
static const choice schedules[] = {
    {"step", SHARD_SCHEDULE_STEP}, {"cosine", SHARD_SCHEDULE_COSINE}, {"constant", SHARD_SCHEDULE_CONSTANT}, {NULL, 0}};

#define AT(field) .offset = offsetof(options, field)
#define MOST_WHOLE 9007199254740992.0 /* 2^53: least and most are doubles */

static const entry table[] = {
    {HEADING, "Model", NULL},
    {TEXT, "arch", "resnet18, resnet34, resnet50, resnet101 or resnet152", "ARCH", .letter = 'a', AT(arch)},
    {CHOICE, "stem", "imagenet: 7x7 with stride 2, and a pooling; small: 3x3, no pooling, for images of 32 to 64 pixels", "STEM",
     AT(stem), .choices = stems},
    {WHOLE, "width", "channels of the first stage; the others have 2, 4 and 8 times as many", "N", AT(width), .least = 1,
     .most = 65536},
    {WHOLE, "num-classes", "outputs of the final layer; 0: as many as DIR/train has, 1000 for synthetic images", "N",
     AT(num_classes), .most = MOST_WHOLE},
    {TEXT, "pretrained",
     "begin with the values of a torchvision state dict or of a checkpoint (.safetensors), whose names must be the "
     "model's",
     "FILE", AT(pretrained), .same = SAME_PRESENCE},
    {TEXT, "pretrained-skip",
     "layers (fc, or fc,head) that are not taken from --pretrained's FILE: those of the model begin anew, those of FILE are "
     "left out. For another number of classes: fc",
     "LAYERS", AT(pretrained_skip)},

    {HEADING, "Images", NULL},
    {WHOLE, "synthetic", "instead of DIR: N synthetic images for training, and a tenth of that for validation", "N",
     AT(synthetic), .most = 1e15},
    {WHOLE, "image-size", "pixels of a side that the network sees", "N", AT(image_size), .least = 1, .most = 65536},
    {NUMBER, "crop-scale", "training crops cover at least this part of the image's area", "X", AT(crop_scale), .least = 0.01,
     .most = 1},
    {NUMBER, "shift",
     "instead of crops: each edge of the image moves by up to this part of a side (for characters and the "
     "like, which a crop would cut)",
     "X", AT(shift), .most = 0.49},
    {FLAG, "no-flip", "do not mirror training images (characters must not be)", AT(no_flip)},
    {WHOLE, "workers", "threads of each rank that load images", "N", .letter = 'j', AT(workers), .same = SAME_NOT, .most = 1024},
    {WHOLE, "skip-bad-images", "let up to N damaged images of an epoch pass; each is printed with its path", "N",
     AT(skip_bad_images), .most = MOST_WHOLE},

    {HEADING, "Computing", NULL},
    {TEXT, "device", "cpu; cuda, this rank's GPU of its machine; cuda:N. Without it what SHARD_DEVICE says, else cpu", "DEVICE",
     AT(device), .same = SAME_NOT},
    {CHOICE, "dtype", "of weights and values: float32, or float64 to compare runs closely", "DTYPE", AT(dtype),
     .choices = dtypes},
    {CHOICE, "enable-amp-mode",
     "mixed precision: products and convolutions in bfloat16, or in float16 with a scaled loss; weights stay float32",
     "[bf16|fp16]", AT(amp), .choices = amps, .alone = "bf16"},
    {CHOICE, "enable-zero-optim",
     "ZeRO: partition over ranks with the same parameters the optimizer's state (1), gradients too (2), values too (3)",
     "[1|2|3]", AT(zero), .choices = stages, .alone = "1"},
    {NUMBER, "bucket-mib", "gradients (and, with ZeRO 3, values) are communicated in buckets of about X MiB", "X", AT(bucket_mib),
     .least = 0.001, .most = 1e6},
    {FLAG, "cuda-graph",
     "capture a training step in a CUDA graph and replay it for each full batch, so that the host launches one thing a step: for "
     "small images. One rank, without fp16, ZeRO and --accumulate",
     AT(cuda_graph)},
    {FLAG, "enable-model-parallel", "split the final layer over ranks", AT(enable_model_parallel)},
    {CHOICE, "model-parallel-dim", "row (or 0): its inputs are split; column (or 1, -1): its outputs", "DIM",
     AT(model_parallel_dim), .choices = splits},
    {WHOLE, "model-parallel-size", "ranks that one final layer is split over; 0: all. The rest is data parallel", "N",
     AT(model_parallel_size), .most = 1e6},
    {CHOICE, "head",
     "final layer. fused: a classifier, which computes loss and update with neither logits nor the gradient of its weight in "
     "memory; plain: a linear layer; auto: fused if the layer is split by column and that saves memory",
     "KIND", AT(head), .choices = heads},
    {FLAG, "same-batch-in-group", "the ranks of a model parallel group have the same images, and gather no features",
     AT(same_batch_in_group)},
    {FLAG, "sync-bn", "batch norms see the whole job's batch", AT(sync_bn)},

    {HEADING, "Final layer", NULL},
    {CHOICE, "head-dtype", "of its weight: bfloat16 takes half the memory; same: as --dtype", "DTYPE", AT(head_dtype),
     .choices = head_dtypes},
    {CHOICE, "head-rounding",
     "how steps round a weight of bfloat16. nearest: small steps are lost; stochastic: up or down at random, right in the mean; "
     "kahan: the rest is kept in a second weight of bfloat16",
     "KIND", AT(head_rounding), .choices = roundings},
    {CHOICE, "head-optimizer",
     "its own optimizer. sgd: without momentum; momentum: SGD with --momentum; adamw; rowwise-adagrad and rowwise-adam: one "
     "second "
     "moment for each class; same: as --optimizer",
     "KIND", AT(head_optimizer), .choices = head_optimizers},
    {NUMBER, "head-lr", "its own learning rate, with the run's schedule; 0: as --lr", "X", AT(head_lr), .most = INFINITY},
    {TEXT, "margin",
     "logits are cosines times --margin-scale, and in training the label's has a margin: cosine (of 0), arcface:M, cosface:M, "
     "sphereface:M or combined:M1,M2,M3; validation has none. There is no bias",
     "KIND", AT(margin_text)},
    {NUMBER, "margin-scale", "of --margin's cosines", "X", AT(margin_scale), .least = 1e-3, .most = 1e6},
    {NUMBER, "sample-rate",
     "Partial FC: a step's softmax is over the labels of its batch and about this part of the other classes; validation is over "
     "all. "
     "Below 1 there is no bias",
     "R", AT(sample_rate), .least = 1e-9, .most = 1},
    {NUMBER, "head-stash",
     "a classifier's loss keeps exponentials for its backward in at most this part of the bytes of its weight; 0: none, and all "
     "are computed again",
     "X", AT(head_stash), .most = 1e9},

    {HEADING, "Training", NULL},
    {WHOLE, "epochs", "passes over the training images", "N", AT(epochs), .least = 1, .most = 1e9},
    {WHOLE, "steps",
     "stop after N steps, counted from the first start on; 0: go by --epochs only. The schedule of the "
     "learning rate always goes by --epochs",
     "N", AT(steps), .most = MOST_WHOLE},
    {WHOLE, "batch-size", "images of a step, of all ranks together", "N", .letter = 'b', AT(batch), .least = 1, .most = 1e9},
    {WHOLE, "accumulate", "a step's batch goes through the model in N parts, for less memory; batch norms see a part", "N",
     AT(accumulate), .least = 1, .most = 1e9},
    {CHOICE, "optimizer", "sgd, adam, adamw, lars or lamb", "KIND", AT(optimizer), .choices = optimizers},
    {NUMBER, "clip-grad", "scale gradients down so that their norm is at most X; 0: do not", "X", AT(clip_grad),
     .most = INFINITY},
    {CHOICE, "non-finite",
     "a step whose loss is NaN or infinite on any rank. stop: the run ends with an error; skip: all ranks leave the step out, "
     "and "
     "one whose gradients are not finite; each step waits for its loss",
     "KIND", AT(non_finite), .choices = policies},
    {NUMBER, "lr", "learning rate", "X", "learning-rate", AT(lr), .most = INFINITY},
    {CHOICE, "lr-schedule", "step: times 0.1 every --lr-step-size epochs; cosine: down to 0 at the end; constant", "KIND",
     AT(lr_schedule), .choices = schedules},
    {WHOLE, "lr-step-size", "epochs between the steps of the step schedule", "N", AT(lr_step_size), .least = 1, .most = 1e9},
    {NUMBER, "warmup-epochs", "the learning rate rises linearly over the first X epochs", "X", AT(warmup_epochs), .most = 1e9},
    {WHOLE, "warmup-steps", "the same in steps; counts if it is not 0", "N", AT(warmup_steps), .most = MOST_WHOLE},
    {NUMBER, "momentum", "momentum of SGD and LARS", "X", AT(momentum), .most = 0.9999},
    {FLAG, "nesterov", "Nesterov's momentum", AT(nesterov)},
    {NUMBER, "wd", "weight decay; not for biases and batch norms", "X", "weight-decay", AT(weight_decay), .most = INFINITY},
    {NUMBER, "label-smoothing", "part of each label that is spread evenly over all classes", "X", AT(label_smoothing), .most = 1},
    {WHOLE, "seed", "of the initial values and of the order and the cropping of images", "N", AT(seed), .most = MOST_WHOLE},

    {HEADING, "Validation and files", NULL},
    {FLAG, "evaluate", "only validate (the model of --resume or --pretrained)", .letter = 'e', AT(evaluate)},
    {WHOLE, "val-interval", "epochs between validations; 0: never", "N", AT(val_interval), .most = 1e9},
    {TEXT, "output",
     "folder for checkpoint.safetensors (the latest), best.safetensors and model.safetensors (the best model alone, without the "
     "optimizer); made if it is not there",
     "DIR", AT(output)},
    {WHOLE, "save-every", "steps between checkpoints; 0: after each epoch only", "N", AT(save_every), .most = MOST_WHOLE},
    {WHOLE, "keep",
     "checkpoints that stay, the newest, as DIR/step-000120/checkpoint.safetensors; 0: one, DIR/checkpoint.safetensors", "N",
     AT(keep), .most = MOST_WHOLE},
    {TEXT, "resume",
     "go on from a checkpoint, on any number of ranks; auto: from the newest whole one in --output's DIR, and from the beginning "
     "if "
     "there is none",
     "FILE", AT(resume), .same = SAME_PRESENCE},
    {TEXT, "metrics", "write one JSON object a line for each step and validation", "FILE", AT(metrics), .same = SAME_PRESENCE},
    {WHOLE, "check-replicas",
     "every K steps compare what ranks have replicas of (parameters, buffers, optimizer state) bit for bit; a difference ends "
     "the "
     "run; 0: never",
     "K", AT(check_replicas), .most = MOST_WHOLE},
    {FLAG, "memory-report", "print what the library's memory is used for at the end: the most of any rank", AT(memory_report)},
    {WHOLE, "print-freq", "steps between printed lines, where there is no terminal", "N", .letter = 'p', AT(print_freq),
     .same = SAME_NOT, .least = 1, .most = MOST_WHOLE},
    {FLAG, "help", "print this", .letter = 'h', AT(help)},
};
#define ENTRIES ((int)(sizeof table / sizeof *table))
#define ALSO 1000  /* getopt's value of a second name is this plus the entry's */
#define TORCH 2000 /* and that of PyTorch's options is this plus their number */

static const options defaults = {
    .workers = 4,
    .image_size = 224,
    .width = OPTIONS_WIDTH,
    .crop_scale = 0.08,
    .arch = "resnet50",
    .bucket_mib = 25,
    .model_parallel_dim = SHARD_SPLIT_COLUMN,
    .head_dtype = HEAD_DTYPE_SAME,
    .head_rounding = SHARD_ROUNDING_STOCHASTIC,
    .margin_text = "none",
    .margin_scale = 64,
    .sample_rate = 1,
    .head_stash = 0.1,
    .epochs = 90,
    .batch = 256,
    .accumulate = 1,
    .lr = 0.1,
    .momentum = 0.9,
    .weight_decay = 1e-4,
    .lr_schedule = SHARD_SCHEDULE_STEP,
    .lr_step_size = 30,
    .val_interval = 1,
    .print_freq = 10,
};

/* ---- reading ---- */

static const choice *find_choice(const choice *choices, const char *name)
{
    while (choices->name && strcmp(choices->name, name) != 0)
        choices++;
    return choices->name ? choices : NULL;
}

static shard_status read_number(const entry *option, const char *text, void *field)
{
    char *end;
    errno = 0;
    int64_t whole = option->kind == WHOLE ? strtoll(text, &end, 10) : 0;
    double number = option->kind == WHOLE ? (double)whole : strtod(text, &end);
    const char *what = option->kind == WHOLE ? "whole number" : "number";
    bool read = end != text && !*end && !errno && number >= option->least && number <= option->most;
    if (!read && option->most >= 1e9)
        return shard_error(SHARD_ERROR_ARGUMENT, "--%s: \"%s\" is not a %s of at least %g", option->name, text, what,
                           option->least);
    if (!read)
        return shard_error(SHARD_ERROR_ARGUMENT, "--%s: \"%s\" is not a %s from %g to %g", option->name, text, what,
                           option->least, option->most);
    if (option->kind == WHOLE)
        *(int64_t *)field = whole;
    else
        *(double *)field = number;
    return SHARD_OK;
}

static bool is_folder(const char *path)
{
    struct stat status;
    return stat(path, &status) == 0 && S_ISDIR(status.st_mode);
}

/* Such an option takes the next word, whatever it is. pytorch/examples' --pretrained takes none. */
static shard_status check_text(const entry *option, const char *text)
{
    if (text[0] == '-')
        return shard_error(SHARD_ERROR_ARGUMENT,
                           "--%s needs a %s, and \"%s\" is an option (write ./%s for a file of that name)",
                           option->name, option->argument, text, text);
    if (strcmp(option->argument, "FILE") == 0 && is_folder(text))
        return shard_error(SHARD_ERROR_ARGUMENT, "--%s needs a FILE, and \"%s\" is a folder", option->name,
                           text);
    return SHARD_OK;
}

static shard_status read_value(const entry *option, const char *text, options *parsed)
{
    void *field = (char *)parsed + option->offset;
    switch (option->kind) {
    case FLAG:
        *(bool *)field = true;
        return SHARD_OK;
    case TEXT:
        *(const char **)field = text;
        return check_text(option, text);
    case CHOICE: {
        const choice *chosen = find_choice(option->choices, text);
        if (!chosen)
            return shard_error(SHARD_ERROR_ARGUMENT, "--%s: there is no \"%s\"; see --help", option->name, text);
        *(int *)field = chosen->value;
        return SHARD_OK;
    }
    case WHOLE:
    case NUMBER:
        return read_number(option, text, field);
    case HEADING:
        break;
    }
    return SHARD_OK;
}

/* The table as getopt_long reads it. */
static void make_getopt(struct option *names, char *letters)
{
    *letters++ = ':';
    for (int i = 0; i < ENTRIES; i++) {
        const entry *option = &table[i];
        if (option->kind == HEADING)
            continue;
        int argument = option->kind == FLAG ? no_argument : option->alone ? optional_argument : required_argument;
        *names++ = (struct option){option->name, argument, NULL, i + 256};
        if (option->also)
            *names++ = (struct option){option->also, argument, NULL, i + 256 + ALSO};
        if (option->letter)
            *letters++ = option->letter;
        if (option->letter && argument == required_argument)
            *letters++ = ':';
    }
    for (int i = 0; i < torch_option_count; i++)
        *names++ = (struct option){torch_options[i].name, torch_options[i].takes_value ? required_argument : no_argument, NULL,
                                   i + TORCH};
    *names = (struct option){0};
    *letters = '\0';
}

static const entry *find_entry(int code)
{
    for (int i = 0; i < ENTRIES; i++)
        if (code == i + 256 || code == i + 256 + ALSO || (code == table[i].letter && code != 0))
            return &table[i];
    return NULL;
}

/* A separate argument after an option with an optional value is the value if it can be; else it is DIR. */
static shard_status read_alone(const entry *option, int argc, char **argv, options *parsed)
{
    const char *next = optind < argc && argv[optind][0] != '-' ? argv[optind] : NULL;
    if (next && find_choice(option->choices, next))
        return read_value(option, argv[optind++], parsed);
    if (next && !is_folder(next))
        return shard_error(SHARD_ERROR_ARGUMENT, "--%s: there is no \"%s\", nor a folder of that name; see --help", option->name,
                           next);
    return read_value(option, option->alone, parsed);
}

bool options_resume_auto(const options *parsed)
{
    return parsed->resume && strcmp(parsed->resume, "auto") == 0;
}

static shard_status check(options *parsed)
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
    if (parsed->model_parallel_size && !parsed->enable_model_parallel)
        return shard_error(SHARD_ERROR_ARGUMENT, "--model-parallel-size needs --enable-model-parallel");
    if (parsed->amp != SHARD_FLOAT32 && parsed->dtype != SHARD_FLOAT32)
        return shard_error(SHARD_ERROR_ARGUMENT, "--enable-amp-mode is for --dtype float32");
    if (parsed->head == HEAD_FUSED && parsed->enable_model_parallel && parsed->model_parallel_dim == SHARD_SPLIT_ROW)
        return shard_error(
            SHARD_ERROR_ARGUMENT,
            "--head fused is for a final layer that is whole or split by column: take --model-parallel-dim column, "
            "or --head plain");
    if (parsed->same_batch_in_group && !parsed->enable_model_parallel)
        return shard_error(SHARD_ERROR_ARGUMENT, "--same-batch-in-group needs --enable-model-parallel");
    if (parsed->batch % parsed->accumulate != 0)
        return shard_error(SHARD_ERROR_ARGUMENT, "--accumulate %" PRId64 ": a batch of %" PRId64 " is not that many equal parts",
                           parsed->accumulate, parsed->batch);
    if (parsed->nesterov && parsed->momentum <= 0)
        return shard_error(SHARD_ERROR_ARGUMENT, "--nesterov needs a --momentum above 0");
    if (parsed->resume && parsed->pretrained)
        return shard_error(SHARD_ERROR_ARGUMENT, "either --resume or --pretrained, not both");
    if (parsed->keep == 1)
        return shard_error(SHARD_ERROR_ARGUMENT,
                           "--keep 1: the one before must stay until the next is written; take at least 2, or 0");
    if (parsed->keep && !parsed->output)
        return shard_error(SHARD_ERROR_ARGUMENT, "--keep needs --output");
    if (options_resume_auto(parsed) && parsed->evaluate)
        return shard_error(SHARD_ERROR_ARGUMENT, "--resume auto is for training: give --evaluate the file");
    if (options_resume_auto(parsed) && !parsed->output)
        return shard_error(SHARD_ERROR_ARGUMENT, "--resume auto looks into --output's DIR: give it");
    if (parsed->pretrained_skip && !parsed->pretrained)
        return shard_error(SHARD_ERROR_ARGUMENT, "--pretrained-skip needs --pretrained");
    if (parsed->evaluate && !parsed->resume && !parsed->pretrained)
        return shard_error(SHARD_ERROR_ARGUMENT, "--evaluate needs a model: give --resume or --pretrained");
    if (parsed->evaluate && parsed->output)
        return shard_error(SHARD_ERROR_ARGUMENT, "--evaluate writes no checkpoint: leave --output out");
    return options_check_head(parsed);
}

shard_status options_parse(options *parsed, int argc, char **argv)
{
    *parsed = defaults;
    struct option names[2 * ENTRIES + OPTIONS_NOTES + 1];
    char letters[2 * ENTRIES + 2];
    make_getopt(names, letters);
    opterr = 0;
    int code;
    while ((code = getopt_long(argc, argv, letters, names, NULL)) != -1) {
        if (code == '?' && optopt > 0 && optopt < 256) /* a letter, of several in a word */
            return shard_error(SHARD_ERROR_ARGUMENT, "there is no option \"-%c\"; see --help", optopt);
        if (code == '?')
            return shard_error(SHARD_ERROR_ARGUMENT, "there is no option \"%s\", or it takes no value; see --help",
                               argv[optind - 1]);
        if (code == ':')
            return shard_error(SHARD_ERROR_ARGUMENT, "the option \"%s\" needs a value; see --help", argv[optind - 1]);
        const entry *option = find_entry(code);
        shard_status status =
            code >= TORCH              ? torch_option_take(&torch_options[code - TORCH], optarg, parsed)
            : option->alone && !optarg ? read_alone(option, argc, argv, parsed) : read_value(option, optarg, parsed);
        if (status != SHARD_OK || parsed->help)
            return status;
    }
    if (optind < argc)
        parsed->directory = argv[optind++];
    if (optind < argc)
        return shard_error(SHARD_ERROR_ARGUMENT, "one DIR only, but there is also \"%s\"", argv[optind]);
    return check(parsed);
}

static const char *name_of(const choice *choices, int value)
{
    while (choices->value != value)
        choices++;
    return choices->name;
}

const char *options_stem_name(const options *parsed)
{
    return name_of(stems, parsed->stem);
}

const char *options_optimizer_name(const options *parsed)
{
    return name_of(optimizers, parsed->optimizer);
}

const char *options_head_optimizer_name(const options *parsed)
{
    if (parsed->head_optimizer != HEAD_OPTIMIZER_SAME)
        return name_of(head_optimizers, parsed->head_optimizer);
    bool momentum = parsed->optimizer == OPTIMIZER_SGD && parsed->momentum > 0;
    return momentum ? "momentum" : options_optimizer_name(parsed);
}

/* ---- printing ---- */

/* The shortest text that reads back to the same bits. */
static void print_number(char *text, size_t bytes, double value)
{
    snprintf(text, bytes, "%g", value);
    if (strtod(text, NULL) != value)
        snprintf(text, bytes, "%.17g", value);
}

static void print_value(char *text, size_t bytes, const entry *option, const options *of)
{
    const void *field = (const char *)of + option->offset;
    switch (option->kind) {
    case TEXT:
        snprintf(text, bytes, "%s", *(const char *const *)field ? *(const char *const *)field : "not given");
        break;
    case WHOLE:
        snprintf(text, bytes, "%" PRId64, *(const int64_t *)field);
        break;
    case NUMBER:
        print_number(text, bytes, *(const double *)field);
        break;
    case CHOICE:
        snprintf(text, bytes, "%s", name_of(option->choices, *(const int *)field));
        break;
    case FLAG:
        snprintf(text, bytes, "%s", *(const bool *)field ? "given" : "not given");
        break;
    case HEADING:
        break;
    }
}

/* The text of an option that may differ between ranks is empty. */
static void write_option(const void *of, int64_t index, char *text)
{
    const entry *option = &table[index];
    text[0] = '\0';
    if (option->kind == HEADING || option->same == SAME_NOT)
        return;
    int used = snprintf(text, AGREE_BYTES, "--%s ", option->name);
    const char *const *word = (const void *)((const char *)of + option->offset);
    if (option->same == SAME_PRESENCE)
        snprintf(text + used, AGREE_BYTES - (size_t)used, "%s", *word ? "given" : "not given");
    else
        print_value(text + used, AGREE_BYTES - (size_t)used, option, of);
}

void options_write_note(const options *parsed, int index, char *text, size_t bytes)
{
    snprintf(text, bytes, "--%s: %s", parsed->notes[index]->name, parsed->notes[index]->instead);
}

shard_status options_agree(const options *own)
{
    return agree_on("options", "start all ranks with the same ones",
                    (agree_list){.count = ENTRIES, .write = write_option, .of = own});
}

/* ---- help ---- */

#define HELP_COLUMN 32
#define HELP_WIDTH 100

/* Prints words from the column on, wrapped at the width. */
static void print_wrapped(FILE *file, const char *text, int column)
{
    int at = column;
    while (*text) {
        int word = (int)strcspn(text, " ");
        if (at > column && at + 1 + word > HELP_WIDTH) {
            fprintf(file, "\n%*s", column, "");
            at = column;
        }
        at += fprintf(file, at > column ? " %.*s" : "%.*s", word, text);
        text += word;
        text += strspn(text, " ");
    }
    fputc('\n', file);
}

/* Prints " (0.1)" for an option that has a default. */
static void print_default(char *text, size_t bytes, const entry *option)
{
    const char *const *word = (const void *)((const char *)&defaults + option->offset);
    char value[64];
    if (option->kind == FLAG || (option->kind == TEXT && !*word))
        return;
    print_value(value, sizeof value, option, &defaults);
    snprintf(text, bytes, " (%s)", value);
}

void options_print_help(FILE *file)
{
    fputs("Usage: imagenet [options] DIR\n"
          "       shardrun -n 4 imagenet --enable-model-parallel [options] DIR\n\n"
          "Trains a ResNet on the images in DIR/train/<class>/*.{jpg,png} and validates it on those in\n"
          "DIR/val, on one rank or on all that shardrun, mpirun or srun start. The final layer can be split\n"
          "over ranks. The same images meet in the same step on any number of ranks. Defaults are in\n"
          "parentheses.\n",
          file);
    for (int i = 0; i < ENTRIES; i++) {
        const entry *option = &table[i];
        if (option->kind == HEADING) {
            fprintf(file, "\n%s\n", option->name);
            continue;
        }
        char name[64], help[512], letter[4] = "";
        if (option->letter)
            snprintf(letter, sizeof letter, "-%c,", option->letter);
        int width = snprintf(name, sizeof name, "  %-3s --%s %s", letter, option->name, option->argument ? option->argument : "");
        fprintf(file, "%-*s", HELP_COLUMN, name);
        if (width >= HELP_COLUMN)
            fprintf(file, "\n%*s", HELP_COLUMN, "");
        snprintf(help, sizeof help, "%s", option->help);
        size_t used = strlen(help);
        print_default(help + used, sizeof help - used, option);
        print_wrapped(file, help, HELP_COLUMN);
    }
    fputs("\nThe other options of pytorch/examples' imagenet, as --world-size, are taken too: a line says what to write instead.\n", file);
    fputs("\nCtrl-C finishes the step, saves a checkpoint if there is an --output, and ends; a second one ends at once.\n", file);
}
