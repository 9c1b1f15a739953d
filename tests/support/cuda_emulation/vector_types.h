/* Stand-in for CUDA's vector_types.h: the vectors that kernels and launches use. */
#ifndef CUDA_EMULATION_VECTOR_TYPES_H
#define CUDA_EMULATION_VECTOR_TYPES_H

#define CUDA_EMULATION_VECTORS(type, name, align2, align4)                                                                       \
    typedef struct name##1                                                                                                       \
    {                                                                                                                            \
        type x;                                                                                                                  \
    }                                                                                                                            \
    name##1;                                                                                                                     \
    typedef struct __attribute__((aligned(align2))) name##2                                                                      \
    {                                                                                                                            \
        type x, y;                                                                                                               \
    }                                                                                                                            \
    name##2;                                                                                                                     \
    typedef struct name##3                                                                                                       \
    {                                                                                                                            \
        type x, y, z;                                                                                                            \
    }                                                                                                                            \
    name##3;                                                                                                                     \
    typedef struct __attribute__((aligned(align4))) name##4                                                                      \
    {                                                                                                                            \
        type x, y, z, w;                                                                                                         \
    }                                                                                                                            \
    name##4;

CUDA_EMULATION_VECTORS(signed char, char, 2, 4)
CUDA_EMULATION_VECTORS(unsigned char, uchar, 2, 4)
CUDA_EMULATION_VECTORS(short, short, 4, 8)
CUDA_EMULATION_VECTORS(unsigned short, ushort, 4, 8)
CUDA_EMULATION_VECTORS(int, int, 8, 16)
CUDA_EMULATION_VECTORS(unsigned int, uint, 8, 16)
CUDA_EMULATION_VECTORS(float, float, 8, 16)
CUDA_EMULATION_VECTORS(long long, longlong, 16, 16)
CUDA_EMULATION_VECTORS(unsigned long long, ulonglong, 16, 16)
CUDA_EMULATION_VECTORS(double, double, 16, 16)
#undef CUDA_EMULATION_VECTORS

typedef struct dim3 {
    unsigned int x, y, z;
#ifdef __cplusplus
    constexpr dim3(unsigned int x_ = 1, unsigned int y_ = 1, unsigned int z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
#endif
} dim3;

#endif
