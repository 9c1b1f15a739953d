/*
 * Whether the tensors of a source (a file or a list) fit those that they are loaded into. All differences are
 * collected, so that one error lists them.
 */
#ifndef SHARD_CHECKPOINT_FIT_H
#define SHARD_CHECKPOINT_FIT_H

#include "tensor/tensor.h"

#define SHARD_COMPLAINT_TENSORS 3

/* The tensors with one kind of difference: how many, and what there is to say of the first few. */
typedef struct shard_complaint {
    int64_t count;
    char text[SHARD_COMPLAINT_TENSORS][200];
} shard_complaint;

typedef struct shard_fit {
    shard_complaint missing, unexpected, refused, shapes, dtypes, placements;
    bool convertible; /* of some other dtype, both floating */
} shard_fit;

void shard_complain(shard_complaint *complaint, const char *format, ...) SHARD_PRINTF(2, 3);

/* Whether values of the shape `from` fill a tensor of the shape `whole`: the shapes are equal, or they are [1] and [].
 * PyTorch 0.3 had no scalars, and torch.nn.Module.load_state_dict takes its files, too. */
bool shard_fit_shapes(const shard_shape *from, const shard_shape *whole);

/* Records a source's tensor of this whole shape and dtype if it does not fit the tensor that it is loaded into.
 * convert: floating dtypes may differ. */
void shard_fit_compare(shard_fit *fit, const char *name, const shard_tensor *tensor, const shard_shape *shape, shard_dtype dtype,
                       bool convert);

/* SHARD_OK, or the error "`source` does not fit: ..." (SHAPE). */
shard_status shard_fit_report(const shard_fit *fit, const char *source);

#endif
