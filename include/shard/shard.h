/* shard/shard.h: all of libshard but dlpack.h. */
#ifndef SHARD_SHARD_H
#define SHARD_SHARD_H

#include <shard/amp.h>
#include <shard/autograd.h>
#include <shard/base.h>
#include <shard/checkpoint.h>
#include <shard/comm.h>
#include <shard/custom_op.h>
#include <shard/data.h>
#include <shard/device.h>
#include <shard/distributed.h>
#include <shard/graph.h>
#include <shard/head.h>
#include <shard/loss.h>
#include <shard/models/iresnet.h>
#include <shard/models/resnet.h>
#include <shard/nn.h>
#include <shard/op.h>
#include <shard/optim.h>
#include <shard/parallel.h>
#include <shard/tensor.h>

#endif
