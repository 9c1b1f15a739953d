/*
 * shard/dlpack.h: tensors of other libraries without a copy, by DLPack 1.
 *
 * The types are those of DLPack's dlpack.h (https://github.com/dmlc/dlpack, version 1.1), written anew from its
 * specification (https://dmlc.github.io/dlpack/latest/c_api.html): the names, values and layouts that an exchange
 * needs. A program that includes DLPack's own header before this one uses that. NumPy from 2.1 and PyTorch from 2.9 exchange
 * them.
 *
 * Streams. GPU memory is used in the order of a stream, and DLPack's structs do not name one. Both functions take the stream on
 * which the device's operations run at the time of the call: its own, or the one of shard_device_use_stream.
 *   - shard_to_dlpack: values are there for work on that stream. The deleter releases the memory in the order of the stream
 *     that is in use then: the consumer's work on the memory is on it, or ordered before it.
 *   - shard_from_dlpack: the producer's work on the memory is on that stream, or ordered before it:
 *     tensor.__dlpack__(stream=number, max_version=(1, 1)) in Python, whose capsule is named dltensor_versioned. The deleter
 *     is called after the operations on the memory are done.
 * The two _unversioned functions are the same for the struct of DLPack before version 1, which has capsules named dltensor: of
 * tensor.__dlpack__(stream=number), and the only ones that older versions know.
 * To write __dlpack__(stream) for a consumer's stream: shard_device_use_stream(device, stream), then the stream before it
 * again. Each of the two streams then waits for the work on the other so far.
 */
#ifndef SHARD_DLPACK_H
#define SHARD_DLPACK_H

#include <shard/tensor.h>

SHARD_BEGIN_C

#ifndef DLPACK_DLPACK_H_
#define DLPACK_DLPACK_H_

#define DLPACK_MAJOR_VERSION 1
#define DLPACK_MINOR_VERSION 1
#define DLPACK_FLAG_BITMASK_READ_ONLY (1UL << 0UL)
#define DLPACK_FLAG_BITMASK_IS_COPIED (1UL << 1UL)

typedef struct {
    uint32_t major;
    uint32_t minor;
} DLPackVersion;

#ifdef __cplusplus
typedef enum : int32_t {
#else
typedef enum {
#endif
    kDLCPU = 1,
    kDLCUDA = 2,
    kDLCUDAHost = 3,
    kDLCUDAManaged = 13,
} DLDeviceType;

typedef struct {
    DLDeviceType device_type;
    int32_t device_id;
} DLDevice;

typedef enum {
    kDLInt = 0U,
    kDLUInt = 1U,
    kDLFloat = 2U,
    kDLOpaqueHandle = 3U,
    kDLBfloat = 4U,
    kDLComplex = 5U,
    kDLBool = 6U,
} DLDataTypeCode;

typedef struct {
    uint8_t code; /* DLDataTypeCode */
    uint8_t bits;
    uint16_t lanes;
} DLDataType;

typedef struct {
    void *data;
    DLDevice device;
    int32_t ndim;
    DLDataType dtype;
    int64_t *shape;
    int64_t *strides; /* in elements; NULL: row-major without gaps */
    uint64_t byte_offset;
} DLTensor;

typedef struct DLManagedTensorVersioned {
    DLPackVersion version;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensorVersioned *self);
    uint64_t flags;
    DLTensor dl_tensor;
} DLManagedTensorVersioned;

typedef struct DLManagedTensor {
    DLTensor dl_tensor;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensor *self);
} DLManagedTensor;

#endif

/* The tensor's memory for another library, without a copy; it stays until the deleter is called, in the tensor's
 * thread. A write to it between a forward and its backward is not detected, as with shard_data. A parameter
 * that moves afterwards (shard_data_parallel_create, shard_zero_optimizer) leaves that memory. NULL with the error
 * set: UNSUPPORTED, a parameter in stage 3 of shard_zero_optimizer, the gradient of a
 * shard_nn_parallel_classifier's weight with data parallel: export a shard_clone. Not collective. As
 * tensor.__dlpack__(max_version=(1, 1)). */
SHARD_API DLManagedTensorVersioned *shard_to_dlpack(shard_tensor *tensor);
/* As shard_to_dlpack, of the struct of before version 1. As tensor.__dlpack__(). NULL with the error set. Not collective. */
SHARD_API DLManagedTensor *shard_to_dlpack_unversioned(shard_tensor *tensor);

/* A tensor on that memory, without a copy. The deleter is called when the last tensor on it is released, or a parameter on it
 * moves (shard_data_parallel_create, shard_zero_optimizer), after which training no longer writes to the memory; at once if
 * there are no elements; after an error it is not called, and the caller still owns `managed`. NULL with the error set:
 * UNSUPPORTED, another major version than 1, memory of another kind than kDLCPU, kDLCUDAHost and kDLCUDA or that is read-only, a
 * dtype that there is not here, more than SHARD_MAX_DIMS dimensions, gaps between elements; UNAVAILABLE, a GPU that cannot be
 * opened; ARGUMENT, elements without memory, or memory that is not aligned to the dtype's size; SHAPE, a negative size; MEMORY,
 * sizes that overflow. Not collective. As torch.from_dlpack. */
SHARD_API shard_tensor *shard_from_dlpack(DLManagedTensorVersioned *managed);
/* As shard_from_dlpack, of the struct of before version 1, which does not tell whether the memory is read-only. NULL with the
 * error set. Not collective. */
SHARD_API shard_tensor *shard_from_dlpack_unversioned(DLManagedTensor *managed);

SHARD_END_C

#endif
