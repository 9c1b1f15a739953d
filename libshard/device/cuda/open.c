/* In the library: loads the CUDA plugin. It is a file of its own, so that programs without a GPU neither need
 * cuBLAS's files nor pay its start-up time. */
#include "base/plugin.h"
#include "device/cuda/plugin.h"

#include <pthread.h>
#include <string.h>

static shard_cuda_plugin_open_function *plugin_open;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

shard_device *shard_cuda_open(int ordinal)
{
    pthread_mutex_lock(&lock);
    if (!plugin_open) {
        void *symbol =
            shard_plugin_load("cuda", SHARD_CUDA_PLUGIN_OPEN,
                              "this libshard was built without CUDA (CUDA 12 or later with cuBLAS and cuDNN 9; README.md, GPUs)",
                              "it needs CUDA's libraries, cuBLAS and cuDNN 9, where they were when libshard was built", false);
        if (symbol)
            memcpy(&plugin_open, &symbol, sizeof plugin_open);
    }
    shard_device *device = plugin_open ? plugin_open(&shard_plugin_own_base, ordinal) : NULL;
    pthread_mutex_unlock(&lock);
    return device;
}
