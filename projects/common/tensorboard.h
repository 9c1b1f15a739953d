/*
 * Scalars for TensorBoard: an event file, events.out.tfevents.SECONDS.HOST.PROCESS, of TFRecords that hold the protocol buffers
 * of tensorflow/core/util/event.proto. Torch's SummaryWriter.add_scalar writes the same.
 */
#ifndef COMMON_TENSORBOARD_H
#define COMMON_TENSORBOARD_H

#include <shard/base.h>

typedef struct tensorboard tensorboard;

/* Makes the folder if it is not there, and a new file in it. goes_on above 0: TensorBoard leaves out the points of the folder's
 * older files from that step on, as with SummaryWriter's purge_step. NULL with the error set (IO, MEMORY). */
tensorboard *tensorboard_open(const char *folder, int64_t goes_on);
/* Adds the point (step, value) to the curve of the tag, of at most 127 bytes. Values are float32 in the file. */
shard_status tensorboard_add_scalar(tensorboard *board, const char *tag, double value, int64_t step);
/* Has the system take what was added, so that TensorBoard shows it. Errors: IO. */
shard_status tensorboard_flush(tensorboard *board);
/* Errors: IO. NULL is fine. */
shard_status tensorboard_close(tensorboard *board);

#endif
