#include "network.h"

#include "margin.h"

#include <inttypes.h>

/* insightface's: levels from 0 to 1 become -1 to 1. */
static const double mean[3] = {0.5, 0.5, 0.5}, deviation[3] = {0.5, 0.5, 0.5};

static const shard_module_type network_type = {.name = "network"};

/* insightface's initial values. */
static shard_module *make_classifier(const options *wanted, int64_t identities, shard_group *group)
{
    shard_module *classifier = shard_nn_parallel_classifier(wanted->embedding_size, identities, group, .bias = false,
                                                            .dtype = head_dtype(&wanted->head, &wanted->training));
    if (classifier)
        shard_nn_init_normal(shard_module_tensor(classifier, "weight"), 0, 0.01);
    return classifier;
}

/* AdaFace's statistics have a module of their own: --pretrained takes a file with a classifier alone. */
static shard_module *make_margin(const options *wanted)
{
    shard_module *margin = shard_module_create(&network_type, NULL);
    margin_add_buffers(margin, &wanted->margin);
    return margin;
}

shard_module *network_make(const options *wanted, int64_t identities, shard_group *group)
{
    shard_module *network = shard_module_create(&network_type, NULL);
    shard_module_add_child(network, NETWORK_BACKBONE,
                           shard_iresnet(options_arch(wanted), .num_features = wanted->embedding_size,
                                         .image_size = wanted->image_size, .width = wanted->width, .dropout = wanted->dropout));
    if (identities > 0)
        shard_module_add_child(network, NETWORK_CLASSIFIER, make_classifier(wanted, identities, group));
    if (identities > 0 && wanted->margin.adaptive)
        shard_module_add_child(network, NETWORK_MARGIN, make_margin(wanted));
    if (shard_last_status() == SHARD_OK)
        return network;
    shard_module_destroy(network);
    return NULL;
}

shard_tensor *network_features(shard_module *network, const options *wanted, shard_tensor *images)
{
    shard_tensor *features = NULL;
    SHARD_AUTOCAST((shard_dtype)wanted->training.amp)
    {
        features = shard_forward(shard_module_child(network, NETWORK_BACKBONE),
                                 shard_normalize_images(images, mean, deviation, SHARD_FLOAT32));
    }
    return shard_cast(features, SHARD_FLOAT32);
}

shard_tensor *network_loss(shard_module *network, const options *wanted, shard_tensor *features, shard_tensor *labels,
                           const class_sample *sample, shard_group *data_group)
{
    const margin_options *m = &wanted->margin;
    shard_tensor *loss = NULL;
    shard_margin_logits_options margin;
    margin_make(&margin, m, m->adaptive ? shard_module_child(network, NETWORK_MARGIN) : NULL, features, data_group);
    SHARD_AUTOCAST(head_autocast(&wanted->head, &wanted->training))
    {
        shard_tensor *x = shard_cast(features, head_dtype(&wanted->head, &wanted->training));
        shard_module *classifier = shard_module_child(network, NETWORK_CLASSIFIER);
        /* A weight that ZeRO 3 streams in row blocks gives logits in memory, whose rows cannot be normalized any more. */
        bool streams = m->cosines && wanted->training.zero == 3;
        shard_tensor *logits = streams ? NULL : shard_forward(classifier, x);
        if (streams)
            loss = shard_linear_cross_entropy(x, shard_module_tensor(classifier, "weight"), NULL, labels,
                                              .reduction = SHARD_REDUCTION_SUM, .sample = sample->classes, .normalized = true,
                                              .margin = &margin);
        else if (m->cosines)
            loss = shard_cross_entropy(logits, labels, .reduction = SHARD_REDUCTION_SUM, .sample = sample->classes,
                                       .normalized = true, .margin = &margin);
        else
            loss = shard_cross_entropy(logits, labels, .reduction = SHARD_REDUCTION_SUM, .sample = sample->classes,
                                       .sample_correction = sample->correction, .stash_share = wanted->head.stash);
        shard_release(logits);
    }
    return loss;
}

/* ---- --pretrained ---- */

static shard_status check_identities(const shard_tensors *file, const shard_tensors *own, const char *path)
{
    static const char name[] = NETWORK_CLASSIFIER ".weight";
    const shard_tensor *theirs = shard_tensors_find(file, name);
    int64_t identities = shard_tensor_whole_shape(shard_tensors_find(own, "weight")).dim[0];
    if (!theirs || shard_tensor_shape(theirs).ndim != 2 || shard_tensor_size(theirs, 0) == identities)
        return SHARD_OK;
    return shard_error(SHARD_ERROR_ARGUMENT,
                       "--pretrained %s: its classifier has %" PRId64 " identities, the training set %" PRId64
                       "; for other identities make the file without a classifier",
                       path, shard_tensor_size(theirs, 0), identities);
}

/* A child's values: all of them are in the file, behind the prefix. */
static shard_status load_child(shard_module *network, const char *child, const char *prefix, const char *path)
{
    shard_tensors *state = shard_state_dict(shard_module_child(network, child));
    shard_status status = state ? shard_load(state, path, .prefix = prefix, .convert = true) : shard_last_status();
    shard_tensors_destroy(state);
    return status;
}

static shard_status load_classifier(shard_module *network, const shard_tensors *file, const char *path)
{
    shard_tensors *own = shard_state_dict(shard_module_child(network, NETWORK_CLASSIFIER));
    shard_status status = own ? check_identities(file, own, path) : shard_last_status();
    shard_tensors_destroy(own);
    return status == SHARD_OK ? load_child(network, NETWORK_CLASSIFIER, NETWORK_CLASSIFIER ".", path) : status;
}

shard_status network_load(shard_module *network, const char *path)
{
    shard_tensors *file = shard_inspect(path, NULL);
    shard_status status = shard_agree(shard_world()); /* a rank alone may have read another file */
    if (status == SHARD_OK) {
        bool prefixed = shard_tensors_find(file, NETWORK_BACKBONE ".conv1.weight") != NULL;
        bool alone = !prefixed && !shard_tensors_find(file, "conv1.weight"); /* a classifier's */
        bool classifies = shard_tensors_find(file, NETWORK_CLASSIFIER ".weight") != NULL && shard_module_child_count(network) > 1;
        if (!classifies || !alone)
            status = load_child(network, NETWORK_BACKBONE, prefixed ? NETWORK_BACKBONE "." : NULL, path);
        if (status == SHARD_OK && classifies)
            status = load_classifier(network, file, path);
        bool adapts = shard_tensors_find(file, NETWORK_MARGIN ".batch_mean") || shard_tensors_find(file, NETWORK_MARGIN ".batch_std");
        if (status == SHARD_OK && shard_module_child_count(network) > 2 && adapts) /* both, or it is an error */
            status = load_child(network, NETWORK_MARGIN, NETWORK_MARGIN ".", path);
    }
    shard_tensors_destroy(file);
    return status;
}
