/* Options of pytorch/examples' imagenet and of TorchShard that this program does not need, mostly for the start of a job. */
#ifndef IMAGENET_OPTIONS_TORCH_H
#define IMAGENET_OPTIONS_TORCH_H

#include "options.h"

#define TORCH_OPTIONS 13

extern const command_foreign torch_options[TORCH_OPTIONS];

#endif
