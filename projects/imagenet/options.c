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
static const command_choice head_dtypes[] = {
    {"same", HEAD_DTYPE_SAME}, {"float32", SHARD_FLOAT32}, {"bfloat16", SHARD_BFLOAT16}, {NULL, 0}};
static const command_choice roundings[] = {
    {"nearest", SHARD_ROUNDING_NEAREST}, {"stochastic", SHARD_ROUNDING_STOCHASTIC}, {"kahan", SHARD_ROUNDING_KAHAN}, {NULL, 0}};
static const command_choice head_optimizers[] = {{"same", HEAD_OPTIMIZER_SAME},
                                                 {"sgd", HEAD_OPTIMIZER_SGD},
                                                 {"momentum", HEAD_OPTIMIZER_MOMENTUM},
                                                 {"adamw", HEAD_OPTIMIZER_ADAMW},
                                                 {"rowwise-adagrad", HEAD_OPTIMIZER_ROWWISE_ADAGRAD},
                                                 {"rowwise-adam", HEAD_OPTIMIZER_ROWWISE_ADAM},
                                                 {NULL, 0}};
static const command_choice policies[] = {{"stop", NON_FINITE_STOP}, {"skip", NON_FINITE_SKIP}, {NULL, 0}};
static const command_choice dtypes[] = {{"float32", SHARD_FLOAT32}, {"float64", SHARD_FLOAT64}, {NULL, 0}};
static const command_choice amps[] = {{"none", SHARD_FLOAT32}, {"bf16", SHARD_BFLOAT16}, {"fp16", SHARD_FLOAT16}, {NULL, 0}};
static const command_choice stages[] = {{"none", 0}, {"1", 1}, {"2", 2}, {"3", 3}, {NULL, 0}};
static const command_choice optimizers[] = {{"sgd", OPTIMIZER_SGD},   {"adam", OPTIMIZER_ADAM}, {"adamw", OPTIMIZER_ADAMW},
                                            {"lars", OPTIMIZER_LARS}, {"lamb", OPTIMIZER_LAMB}, {NULL, 0}};
static const command_choice schedules[] = {
    {"step", SHARD_SCHEDULE_STEP}, {"cosine", SHARD_SCHEDULE_COSINE}, {"constant", SHARD_SCHEDULE_CONSTANT}, {NULL, 0}};

#define AT(field) .offset = offsetof(options, field)
#define MOST_WHOLE COMMAND_MOST_WHOLE

static const command_option table[] = {
    {COMMAND_HEADING, "Model", NULL},
    {COMMAND_TEXT, "arch", "resnet18, resnet34, resnet50, resnet101 or resnet152", "ARCH", .letter = 'a', AT(arch)},
    {COMMAND_CHOICE, "stem", "imagenet: 7x7 with stride 2, and a pooling; small: 3x3, no pooling, for images of 32 to 64 pixels",
     "STEM", AT(stem), .choices = stems},
    {COMMAND_WHOLE, "width", "channels of the first stage; the others have 2, 4 and 8 times as many", "N", AT(width), .least = 1,
     .most = 65536},
    {COMMAND_WHOLE, "num-classes", "outputs of the final layer; 0: as many as DIR/train has, 1000 for synthetic images", "N",
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
    {COMMAND_FLAG, "no-flip", "do not mirror training images (characters must not be)", AT(no_flip)},
    {COMMAND_WHOLE, "workers", "threads of each rank that load images", "N", .letter = 'j', AT(workers), .same = COMMAND_SAME_NOT,
     .most = 1024},
    {COMMAND_WHOLE, "skip-bad-images", "let up to N damaged images of an epoch pass; each is printed with its path", "N",
     AT(skip_bad_images), .most = MOST_WHOLE},

    {COMMAND_HEADING, "Computing", NULL},
    {COMMAND_TEXT, "device", "cpu; cuda, this rank's GPU of its machine; cuda:N. Without it what SHARD_DEVICE says, else cpu",
     "DEVICE", AT(device), .same = COMMAND_SAME_NOT},
    {COMMAND_CHOICE, "dtype", "of weights and values: float32, or float64 to compare runs closely", "DTYPE", AT(dtype),
     .choices = dtypes},
    {COMMAND_CHOICE, "enable-amp-mode",
     "mixed precision: products and convolutions in bfloat16, or in float16 with a scaled loss; weights stay float32",
     "[bf16|fp16]", AT(amp), .choices = amps, .alone = "bf16"},
    {COMMAND_CHOICE, "enable-zero-optim",
     "ZeRO: partition over ranks with the same parameters the optimizer's state (1), gradients too (2), values too (3)",
     "[1|2|3]", AT(zero), .choices = stages, .alone = "1"},
    {COMMAND_NUMBER, "bucket-mib", "gradients (and, with ZeRO 3, values) are communicated in buckets of about X MiB", "X",
     AT(bucket_mib), .least = 0.001, .most = 1e6},
    {COMMAND_FLAG, "cuda-graph",
     "capture a training step in a CUDA graph and replay it for each full batch, so that the host launches one thing a step: for "
     "small images. One rank, without fp16, ZeRO and --accumulate",
     AT(cuda_graph)},
    {COMMAND_FLAG, "enable-model-parallel", "split the final layer over ranks", AT(enable_model_parallel)},
    {COMMAND_CHOICE, "model-parallel-dim", "row (or 0): its inputs are split; column (or 1, -1): its outputs", "DIM",
     AT(model_parallel_dim), .choices = splits},
    {COMMAND_WHOLE, "model-parallel-size", "ranks that one final layer is split over; 0: all. The rest is data parallel", "N",
     AT(model_parallel_size), .most = 1e6},
    {COMMAND_CHOICE, "head",
     "final layer. fused: a classifier, which computes loss and update with neither logits nor the gradient of its weight in "
     "memory; plain: a linear layer; auto: fused if the layer is split by column and that saves memory",
     "KIND", AT(head), .choices = heads},
    {COMMAND_FLAG, "same-batch-in-group", "the ranks of a model parallel group have the same images, and gather no features",
     AT(same_batch_in_group)},
    {COMMAND_FLAG, "sync-bn", "batch norms see the whole job's batch", AT(sync_bn)},

    {COMMAND_HEADING, "Final layer", NULL},
    {COMMAND_CHOICE, "head-dtype", "of its weight: bfloat16 takes half the memory; same: as --dtype", "DTYPE", AT(head_dtype),
     .choices = head_dtypes},
    {COMMAND_CHOICE, "head-rounding",
     "how steps round a weight of bfloat16. nearest: small steps are lost; stochastic: up or down at random, right in the mean; "
     "kahan: the rest is kept in a second weight of bfloat16",
     "KIND", AT(head_rounding), .choices = roundings},
    {COMMAND_CHOICE, "head-optimizer",
     "its own optimizer. sgd: without momentum; momentum: SGD with --momentum; adamw; rowwise-adagrad and rowwise-adam: one "
     "second "
     "moment for each class; same: as --optimizer",
     "KIND", AT(head_optimizer), .choices = head_optimizers},
    {COMMAND_NUMBER, "head-lr", "its own learning rate, with the run's schedule; 0: as --lr", "X", AT(head_lr), .most = INFINITY},
    {COMMAND_TEXT, "margin",
     "logits are cosines times --margin-scale, and in training the label's has a margin: cosine (of 0), arcface:M, cosface:M, "
     "sphereface:M or combined:M1,M2,M3; validation has none. There is no bias",
     "KIND", AT(margin_text)},
    {COMMAND_NUMBER, "margin-scale", "of --margin's cosines", "X", AT(margin_scale), .least = 1e-3, .most = 1e6},
    {COMMAND_NUMBER, "sample-rate",
     "Partial FC: a step's softmax is over the labels of its batch and about this part of the other classes; validation is over "
     "all. "
     "Below 1 there is no bias",
     "R", AT(sample_rate), .least = 1e-9, .most = 1},
    {COMMAND_NUMBER, "head-stash",
     "a classifier's loss keeps exponentials for its backward in at most this part of the bytes of its weight; 0: none, and all "
     "are computed again",
     "X", AT(head_stash), .most = 1e9},

    {COMMAND_HEADING, "Training", NULL},
    {COMMAND_WHOLE, "epochs", "passes over the training images", "N", AT(epochs), .least = 1, .most = 1e9},
    {COMMAND_WHOLE, "steps",
     "stop after N steps, counted from the first start on; 0: go by --epochs only. The schedule of the "
     "learning rate always goes by --epochs",
     "N", AT(steps), .most = MOST_WHOLE},
    {COMMAND_WHOLE, "batch-size", "images of a step, of all ranks together", "N", .letter = 'b', AT(batch), .least = 1,
     .most = 1e9},
    {COMMAND_WHOLE, "accumulate", "a step's batch goes through the model in N parts, for less memory; batch norms see a part",
     "N", AT(accumulate), .least = 1, .most = 1e9},
    {COMMAND_CHOICE, "optimizer", "sgd, adam, adamw, lars or lamb", "KIND", AT(optimizer), .choices = optimizers},
    {COMMAND_NUMBER, "clip-grad", "scale gradients down so that their norm is at most X; 0: do not", "X", AT(clip_grad),
     .most = INFINITY},
    {COMMAND_CHOICE, "non-finite",
     "a step whose loss is NaN or infinite on any rank. stop: the run ends with an error; skip: all ranks leave the step out, "
     "and "
     "one whose gradients are not finite; each step waits for its loss",
     "KIND", AT(non_finite), .choices = policies},
    {COMMAND_NUMBER, "lr", "learning rate", "X", "learning-rate", AT(lr), .most = INFINITY},
    {COMMAND_CHOICE, "lr-schedule", "step: times 0.1 every --lr-step-size epochs; cosine: down to 0 at the end; constant", "KIND",
     AT(lr_schedule), .choices = schedules},
    {COMMAND_WHOLE, "lr-step-size", "epochs between the steps of the step schedule", "N", AT(lr_step_size), .least = 1,
     .most = 1e9},
    {COMMAND_NUMBER, "warmup-epochs", "the learning rate rises linearly over the first X epochs", "X", AT(warmup_epochs),
     .most = 1e9},
    {COMMAND_WHOLE, "warmup-steps", "the same in steps; counts if it is not 0", "N", AT(warmup_steps), .most = MOST_WHOLE},
    {COMMAND_NUMBER, "momentum", "momentum of SGD and LARS", "X", AT(momentum), .most = 0.9999},
    {COMMAND_FLAG, "nesterov", "Nesterov's momentum", AT(nesterov)},
    {COMMAND_NUMBER, "wd", "weight decay; not for biases and batch norms", "X", "weight-decay", AT(weight_decay),
     .most = INFINITY},
    {COMMAND_NUMBER, "label-smoothing", "part of each label that is spread evenly over all classes", "X", AT(label_smoothing),
     .most = 1},
    {COMMAND_WHOLE, "seed", "of the initial values and of the order and the cropping of images", "N", AT(seed),
     .most = MOST_WHOLE},

    {COMMAND_HEADING, "Validation and files", NULL},
    {COMMAND_FLAG, "evaluate", "only validate (the model of --resume or --pretrained)", .letter = 'e', AT(evaluate)},
    {COMMAND_WHOLE, "val-interval", "epochs between validations; 0: never", "N", AT(val_interval), .most = 1e9},
    {COMMAND_TEXT, "output",
     "folder for checkpoint.safetensors (the latest), best.safetensors and model.safetensors (the best model alone, without the "
     "optimizer); made if it is not there",
     "DIR", AT(output)},
    {COMMAND_WHOLE, "save-every", "steps between checkpoints; 0: after each epoch only", "N", AT(save_every), .most = MOST_WHOLE},
    {COMMAND_WHOLE, "keep",
     "checkpoints that stay, the newest, as DIR/step-000120/checkpoint.safetensors; 0: one, DIR/checkpoint.safetensors", "N",
     AT(keep), .most = MOST_WHOLE},
    {COMMAND_FLAG, "save-async", "write checkpoints in the background, from a copy in memory, while training goes on", AT(save_async)},
    {COMMAND_TEXT, "resume",
     "go on from a checkpoint, on any number of ranks; auto: from the newest whole one in --output's DIR, and from the beginning "
     "if "
     "there is none",
     "FILE", AT(resume), .same = COMMAND_SAME_PRESENCE},
    {COMMAND_TEXT, "metrics", "write one JSON object a line for each step and validation", "FILE", AT(metrics),
     .same = COMMAND_SAME_PRESENCE},
    {COMMAND_TEXT, "tensorboard", "write the same numbers for TensorBoard into a folder, which is made if it is not there", "DIR",
     AT(tensorboard), .same = COMMAND_SAME_PRESENCE},
    {COMMAND_WHOLE, "check-replicas",
     "every K steps compare what ranks have replicas of (parameters, buffers, optimizer state) bit for bit; a difference ends "
     "the "
     "run; 0: never",
     "K", AT(check_replicas), .most = MOST_WHOLE},
    {COMMAND_FLAG, "memory-report", "print what the library's memory is used for at the end: the most of any rank",
     AT(memory_report)},
    {COMMAND_WHOLE, "print-freq", "steps between printed lines, where there is no terminal", "N", .letter = 'p', AT(print_freq),
     .same = COMMAND_SAME_NOT, .least = 1, .most = MOST_WHOLE},
    {COMMAND_HELP, "help", "print this", .letter = 'h', AT(help)},
};
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

static const command_line line = {
    .options = table,
    .count = (int)(sizeof table / sizeof *table),
    .defaults = &defaults,
    .bytes = sizeof defaults,
    .operand = "DIR",
    .operand_offset = offsetof(options, directory),
    .usage = "Usage: imagenet [options] DIR\n"
             "       shardrun -n 4 imagenet --enable-model-parallel [options] DIR\n\n"
             "Trains a ResNet on the images in DIR/train/<class>/*.{jpg,png} and validates it on those in\n"
             "DIR/val, on one rank or on all that shardrun, mpirun or srun start. The final layer can be split\n"
             "over ranks. The same images meet in the same step on any number of ranks. Defaults are in\n"
             "parentheses.\n",
    .closing = "\nThe other options of pytorch/examples' imagenet, as --world-size, are taken too: a line says what to write "
               "instead.\n"
               "\nCtrl-C finishes the step, saves a checkpoint if there is an --output, and ends; a second one ends at once.\n",
    .foreign = torch_options,
    .foreign_count = TORCH_OPTIONS,
    .notes_offset = offsetof(options, notes),
};

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
    if ((parsed->keep || parsed->save_async) && !parsed->output)
        return shard_error(SHARD_ERROR_ARGUMENT, "--%s needs --output", parsed->keep ? "keep" : "save-async");
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
    bool help;
    shard_status status = command_line_read(&line, parsed, argc, argv, &help);
    return status == SHARD_OK && !help ? check(parsed) : status;
}

const char *options_stem_name(const options *parsed)
{
    return command_choice_name(stems, parsed->stem);
}

const char *options_optimizer_name(const options *parsed)
{
    return command_choice_name(optimizers, parsed->optimizer);
}

const char *options_head_optimizer_name(const options *parsed)
{
    if (parsed->head_optimizer != HEAD_OPTIMIZER_SAME)
        return command_choice_name(head_optimizers, parsed->head_optimizer);
    bool momentum = parsed->optimizer == OPTIMIZER_SGD && parsed->momentum > 0;
    return momentum ? "momentum" : options_optimizer_name(parsed);
}

shard_status options_agree(const options *own)
{
    return command_line_agree(&line, own);
}

void options_print_help(FILE *file)
{
    command_line_print_help(&line, file);
}
