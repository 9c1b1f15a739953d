/*
 * oneDNN 2.x (2.2 on) and 3.x under one name: the differences between them that matter here. In 2.x memory
 * descriptors are structures and a primitive's descriptor is made in two steps; in 3.x descriptors are owned
 * handles.
 */
#ifndef SHARD_DEVICE_CPU_DNNL_H
#define SHARD_DEVICE_CPU_DNNL_H

#include <oneapi/dnnl/dnnl.h>

#include <stddef.h>

#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t shard_dnnl_layout; /* owned */
typedef const_dnnl_memory_desc_t shard_dnnl_layout_borrowed;
#define SHARD_DNNL_BORROW(layout) (*(layout))
#else
typedef dnnl_memory_desc_t shard_dnnl_layout;
typedef const dnnl_memory_desc_t *shard_dnnl_layout_borrowed;
#define SHARD_DNNL_BORROW(layout) ((shard_dnnl_layout_borrowed)(layout))
#endif

static inline dnnl_status_t shard_dnnl_layout_create_by_tag(shard_dnnl_layout *layout, int ndim, const dnnl_dims_t dims,
                                                            dnnl_data_type_t type, dnnl_format_tag_t tag)
{
#if DNNL_VERSION_MAJOR >= 3
    return dnnl_memory_desc_create_with_tag(layout, ndim, dims, type, tag);
#else
    return dnnl_memory_desc_init_by_tag(layout, ndim, dims, type, tag);
#endif
}

/* Strides NULL: oneDNN chooses the layout. */
static inline dnnl_status_t shard_dnnl_layout_create(shard_dnnl_layout *layout, int ndim, const dnnl_dims_t dims,
                                                     dnnl_data_type_t type, const dnnl_dim_t *strides)
{
    if (!strides)
        return shard_dnnl_layout_create_by_tag(layout, ndim, dims, type, dnnl_format_tag_any);
#if DNNL_VERSION_MAJOR >= 3
    return dnnl_memory_desc_create_with_strides(layout, ndim, dims, type, strides);
#else
    return dnnl_memory_desc_init_by_strides(layout, ndim, dims, type, strides);
#endif
}

static inline void shard_dnnl_layout_destroy(shard_dnnl_layout *layout)
{
#if DNNL_VERSION_MAJOR >= 3
    if (*layout)
        dnnl_memory_desc_destroy(*layout);
    *layout = NULL;
#else
    (void)layout;
#endif
}

static inline dnnl_status_t shard_dnnl_append_sum(dnnl_post_ops_t operations)
{
#if DNNL_VERSION_MAJOR >= 3
    return dnnl_post_ops_append_sum(operations, 1.0f, 0, dnnl_data_type_undef);
#else
    return dnnl_post_ops_append_sum(operations, 1.0f);
#endif
}

/* bias may be NULL, here and below. */
static inline dnnl_status_t shard_dnnl_matmul(dnnl_primitive_desc_t *descriptor, dnnl_engine_t engine,
                                              shard_dnnl_layout_borrowed a, shard_dnnl_layout_borrowed b,
                                              shard_dnnl_layout_borrowed bias, shard_dnnl_layout_borrowed c,
                                              const_dnnl_primitive_attr_t attributes)
{
#if DNNL_VERSION_MAJOR >= 3
    return dnnl_matmul_primitive_desc_create(descriptor, engine, a, b, bias, c, attributes);
#else
    dnnl_matmul_desc_t operation;
    dnnl_status_t status = dnnl_matmul_desc_init(&operation, a, b, bias, c);
    return status != dnnl_success ? status : dnnl_primitive_desc_create(descriptor, &operation, attributes, engine, NULL);
#endif
}

/* A convolution's layouts, and its numbers as oneDNN counts them: dilation from 0. */
typedef struct shard_dnnl_convolution {
    shard_dnnl_layout_borrowed x, weight, bias, y;
    dnnl_dims_t stride, dilation, padding;
} shard_dnnl_convolution;

static inline dnnl_status_t shard_dnnl_convolution_forward(dnnl_primitive_desc_t *descriptor, dnnl_engine_t engine,
                                                           const shard_dnnl_convolution *c,
                                                           const_dnnl_primitive_attr_t attributes)
{
#if DNNL_VERSION_MAJOR >= 3
    return dnnl_convolution_forward_primitive_desc_create(descriptor, engine, dnnl_forward_training, dnnl_convolution_direct,
                                                          c->x, c->weight, c->bias, c->y, c->stride, c->dilation, c->padding,
                                                          c->padding, attributes);
#else
    dnnl_convolution_desc_t operation;
    dnnl_status_t status =
        dnnl_dilated_convolution_forward_desc_init(&operation, dnnl_forward_training, dnnl_convolution_direct, c->x, c->weight,
                                                   c->bias, c->y, c->stride, c->dilation, c->padding, c->padding);
    return status != dnnl_success ? status : dnnl_primitive_desc_create(descriptor, &operation, attributes, engine, NULL);
#endif
}

static inline dnnl_status_t shard_dnnl_convolution_backward_data(dnnl_primitive_desc_t *descriptor, dnnl_engine_t engine,
                                                                 const shard_dnnl_convolution *c,
                                                                 const_dnnl_primitive_desc_t forward,
                                                                 const_dnnl_primitive_attr_t attributes)
{
#if DNNL_VERSION_MAJOR >= 3
    return dnnl_convolution_backward_data_primitive_desc_create(descriptor, engine, dnnl_convolution_direct, c->x, c->weight,
                                                                c->y, c->stride, c->dilation, c->padding, c->padding, forward,
                                                                attributes);
#else
    dnnl_convolution_desc_t operation;
    dnnl_status_t status = dnnl_dilated_convolution_backward_data_desc_init(&operation, dnnl_convolution_direct, c->x, c->weight,
                                                                            c->y, c->stride, c->dilation, c->padding, c->padding);
    return status != dnnl_success ? status : dnnl_primitive_desc_create(descriptor, &operation, attributes, engine, forward);
#endif
}

static inline dnnl_status_t shard_dnnl_convolution_backward_weights(dnnl_primitive_desc_t *descriptor, dnnl_engine_t engine,
                                                                    const shard_dnnl_convolution *c,
                                                                    const_dnnl_primitive_desc_t forward,
                                                                    const_dnnl_primitive_attr_t attributes)
{
#if DNNL_VERSION_MAJOR >= 3
    return dnnl_convolution_backward_weights_primitive_desc_create(descriptor, engine, dnnl_convolution_direct, c->x, c->weight,
                                                                   c->bias, c->y, c->stride, c->dilation, c->padding, c->padding,
                                                                   forward, attributes);
#else
    dnnl_convolution_desc_t operation;
    dnnl_status_t status = dnnl_dilated_convolution_backward_weights_desc_init(
        &operation, dnnl_convolution_direct, c->x, c->weight, c->bias, c->y, c->stride, c->dilation, c->padding, c->padding);
    return status != dnnl_success ? status : dnnl_primitive_desc_create(descriptor, &operation, attributes, engine, forward);
#endif
}

#endif
