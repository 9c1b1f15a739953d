/* Includes the file SELF for both types that kernels compute in: `real` is the
 * type, R(name) the name of its variant. */
#define real float
#define R(name) name##_float
#include SELF
#undef real
#undef R

#define real double
#define R(name) name##_double
#include SELF
#undef real
#undef R
