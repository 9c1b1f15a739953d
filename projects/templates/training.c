/*
 * Template of a whole training run: the last layer split over pairs of ranks, replicas of the
 * pairs, ZeRO, bfloat16, gradients of several micro-batches added up, clipping, a schedule with
 * warmup, averaged weights, a checkpoint in the middle. Comments name PyTorch's counterparts.
 *
 *     shardrun -n 4 training           trains, saves training.safetensors on its way, and averaged.safetensors
 *     shardrun -n 2 training resume    goes on from training.safetensors, on any number of ranks
 * To train another model: change make for the model and load_samples for the data.
 */
#include <shard/shard.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { FEATURES = 32, HIDDEN = 64, CLASSES = 1000, SAMPLES = 240, MICRO_BATCH = 24, ACCUMULATE = 2, STEPS = 24, SAVE_AT = 12 };

typedef struct run {
    shard_mesh *mesh;
    shard_module *model;
    shard_optimizer *optimizer;
    shard_data_parallel *data_parallel;
    shard_ema *ema;
    shard_group_sampler *sampler;
    shard_tensors *state; /* the tensors of a checkpoint, whose metadata is the position */
    int64_t step;
} run;

/* In this order. A maker that gets NULL returns NULL and keeps the first error, so nothing is checked in between. */
static void make(run *r)
{
    r->mesh = shard_mesh_create(.model = shard_group_size(shard_world()) % 2 ? 1 : 2); /* init_device_mesh */
    shard_group *model_group = shard_mesh_model_group(r->mesh), *data_group = shard_mesh_data_group(r->mesh);
    shard_manual_seed(1); /* the same calls on all ranks: each makes its local shards of the same whole layers */
    r->model = shard_nn_sequential(shard_nn_linear(FEATURES, HIDDEN),
                                   shard_nn_batch_norm(HIDDEN, .group = data_group), /* SyncBatchNorm */
                                   shard_nn_relu(),
                                   shard_nn_parallel_linear(HIDDEN, CLASSES, SHARD_SPLIT_COLUMN, model_group));
    /* DistributedDataParallel, and ZeRO's stage 2. Each parameter is partitioned over its replica group: the last layer's
     * shards over the data group, the others over the world. */
    r->state = shard_state_dict(r->model);
    r->data_parallel = shard_data_parallel_create(r->model, .stage = 2, .buffers = r->state);
    r->optimizer = shard_adamw(r->model, .lr = 0.02, .weight_decay = 0.01);
    r->ema = shard_ema_create(r->optimizer, .decay = 0.9, .warmup = true); /* AveragedModel */
    /* DistributedSampler over model groups: the two ranks of one have the same samples. EXACT: any number of groups. */
    r->sampler = shard_group_sampler_create(SAMPLES, .batch = MICRO_BATCH, .group = data_group, .shuffle = true, .seed = 1,
                                            .last_batch = SHARD_LAST_BATCH_EXACT);
    shard_tensors *optimizer_state = shard_optimizer_state_dict(r->optimizer), *averages = shard_ema_state_dict(r->ema);
    shard_tensors_extend(r->state, "optimizer.", optimizer_state);
    shard_tensors_extend(r->state, "ema.", averages);
    shard_tensors_destroy(optimizer_state), shard_tensors_destroy(averages); /* the list has references to their tensors */
}

/* Synthetic: forty of the classes, each a direction and some noise. */
static void load_samples(const int64_t *samples, int64_t count, shard_tensor **inputs, shard_tensor **labels)
{
    float x[MICRO_BATCH * FEATURES];
    int64_t y[MICRO_BATCH];
    for (int64_t i = 0; i < count; i++) {
        y[i] = samples[i] % 40 * 25;
        for (int64_t j = 0; j < FEATURES; j++)
            x[i * FEATURES + j] = (float)(sin((double)(y[i] * (j + 1))) + 0.2 * sin((double)(samples[i] * (j + 53))));
    }
    *inputs = shard_from_host(x, SHARD_SHAPE(count, FEATURES));
    *labels = shard_from_host(y, SHARD_SHAPE(count), .dtype = SHARD_INT64);
}

/* One optimizer step on ACCUMULATE micro-batches. */
static void train_step(run *r)
{
    const shard_schedule schedule =
        SHARD_SCHEDULE(.kind = SHARD_SCHEDULE_COSINE, .base_lr = 0.02, .warmup_steps = 4, .total_steps = STEPS);
    shard_optimizer_set_lr(r->optimizer, shard_schedule_lr(&schedule, r->step)); /* a function of the step: nothing to save */
    shard_group *data_group = shard_mesh_data_group(r->mesh);
    int64_t samples[MICRO_BATCH], count;
    double mean = 0;
    for (int micro = 0; micro < ACCUMULATE; micro++) {
        if (!shard_group_sampler_next(r->sampler, samples, &count)) {
            shard_group_sampler_set_epoch(r->sampler, shard_group_sampler_epoch(r->sampler) + 1);
            shard_group_sampler_next(r->sampler, samples, &count);
        }
        shard_data_parallel_set_sync(r->data_parallel, micro == ACCUMULATE - 1); /* ddp.no_sync() but for the last */
        SHARD_SCOPE { /* tensors of the scope are freed at its end */
            shard_tensor *inputs, *labels, *loss = NULL;
            load_samples(samples, count, &inputs, &labels);
            SHARD_AUTOCAST(SHARD_BFLOAT16) /* float16 needs a shard_grad_scaler too: shard/amp.h */
                loss = shard_parallel_cross_entropy(shard_forward(r->model, inputs), labels, .reduction = SHARD_REDUCTION_SUM);
            /* Each sample weighs the same, also those of an epoch's last micro-batch, which may be smaller: its step then
             * counts less. Data parallel averages over model groups, of which some may have a sample more than others. */
            loss = shard_scale(loss, (double)shard_group_size(data_group) / (MICRO_BATCH * ACCUMULATE));
            shard_backward(loss);
            shard_all_reduce(loss, SHARD_SUM, data_group); /* to print it; data parallel averages gradients itself */
            mean += shard_item(loss) / shard_group_size(data_group);
        }
    }
    shard_clip_grad_norm(r->optimizer, 1.0, NULL); /* takes the optimizer, as the gradients are partitioned over the ranks */
    shard_step(r->optimizer);                      /* and zero_grad */
    shard_ema_update(r->ema);
    r->step++;
    if (shard_group_rank(shard_world()) == 0)
        printf("step %2d  lr %.4f  loss %.4f\n", (int)r->step, shard_optimizer_lr(r->optimizer), mean);
}

/* One file; each rank writes its local shards. A model with dropout also saves shard_get_random_state. */
static void save(const run *r)
{
    shard_metadata *at = shard_metadata_create();
    shard_metadata_set_integer(at, "step", r->step);
    shard_metadata_set_integer(at, "epoch", shard_group_sampler_epoch(r->sampler));
    shard_metadata_set_integer(at, "epoch_step", shard_group_sampler_step(r->sampler));
    shard_save(r->state, "training.safetensors", at);
    shard_metadata_destroy(at);
}

static void resume(run *r)
{
    int64_t epoch = 0, epoch_step = 0;
    shard_metadata *at = NULL;
    shard_load_with_metadata(r->state, "training.safetensors", &at);
    shard_metadata_get_integer(at, "step", &r->step);
    shard_metadata_get_integer(at, "epoch", &epoch);
    shard_metadata_get_integer(at, "epoch_step", &epoch_step);
    shard_group_sampler_seek(r->sampler, epoch, epoch_step);
    shard_metadata_destroy(at);
}

int main(int argc, char **argv)
{
    shard_init(&argc, &argv);
    run r = {0};
    make(&r);
    if (argc > 1 && strcmp(argv[1], "resume") == 0)
        resume(&r);
    while (shard_agree(shard_world()) == SHARD_OK && r.step < STEPS) { /* an error of one rank ends all ranks, with its text */
        train_step(&r);
        if (r.step == SAVE_AT)
            save(&r);
    }
    shard_ema_swap(r.ema); /* the model has the averaged weights: to evaluate, or to save */
    shard_save_module(r.model, "averaged.safetensors");
    shard_ema_swap(r.ema);
    if (shard_group_rank(shard_world()) == 0)
        shard_memory_report(shard_device_open(NULL), stdout); /* torch.cuda.memory_summary */
    shard_tensors_destroy(r.state); /* in reverse order of creation */
    shard_group_sampler_destroy(r.sampler);
    shard_ema_destroy(r.ema);
    shard_data_parallel_destroy(r.data_parallel);
    shard_optimizer_destroy(r.optimizer);
    shard_module_destroy(r.model);
    shard_mesh_destroy(r.mesh);
    return shard_finalize(); /* prints the first error, if any */
}
