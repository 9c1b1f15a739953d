#include "device/cpu/kernels/pick.h"

#include "base/env.h"
#include "base/error.h"
#include "base/log.h"
#include "device/cpu/cpu_head.h"

#include <pthread.h>
#include <string.h>

#ifdef SHARD_X86_64_KERNELS
#include <cpuid.h>
#endif

static bool runs_baseline(void)
{
    return true;
}
extern const shard_device_ops shard_cpu_kernels_baseline;
extern const shard_cpu_head_kernels shard_cpu_head_kernels_baseline;

#ifdef SHARD_X86_64_KERNELS
extern const shard_device_ops shard_cpu_kernels_v3, shard_cpu_kernels_v4;
extern const shard_cpu_head_kernels shard_cpu_head_kernels_v3, shard_cpu_head_kernels_v4;

static bool runs_v3(void)
{
    unsigned eax, ebx, ecx = 0, edx;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __get_cpuid(1, &eax, &ebx, &ecx, &edx) &&
           (ecx & bit_F16C);
}

static bool runs_v4(void)
{
    return runs_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif

static const struct {
    const char *name;
    const shard_device_ops *kernels;
    const shard_cpu_head_kernels *head;
    bool (*runs)(void);
} sets[] = {
    {"baseline", &shard_cpu_kernels_baseline, &shard_cpu_head_kernels_baseline, runs_baseline},
#ifdef SHARD_X86_64_KERNELS
    {"v3", &shard_cpu_kernels_v3, &shard_cpu_head_kernels_v3, runs_v3},
    {"v4", &shard_cpu_kernels_v4, &shard_cpu_head_kernels_v4, runs_v4},
#endif
};
enum { SETS = sizeof sets / sizeof *sets };

const shard_device_ops *shard_cpu_kernel_set(int i, const char **name, bool *runs)
{
    if (i < 0 || i >= SETS)
        return NULL;
    *name = sets[i].name;
    *runs = sets[i].runs();
    return sets[i].kernels;
}

static const shard_device_ops *picked;
static const shard_cpu_head_kernels *picked_head;

static void pick(void)
{
    const char *wanted = shard_env_string("SHARD_CPU_ISA", NULL), *name = NULL;
    for (int i = 0; i < SETS; i++) {
        if ((!wanted || strcmp(wanted, sets[i].name) == 0) && sets[i].runs()) {
            picked = sets[i].kernels;
            picked_head = sets[i].head;
            name = sets[i].name;
        }
    }
    if (name)
        shard_log_message(SHARD_LOG_DEBUG, "cpu: kernels of instruction set %s", name);
}

const shard_device_ops *shard_cpu_kernels(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, pick);
    if (!picked)
        return shard_fail_null(SHARD_ERROR_UNSUPPORTED,
                               "environment variable SHARD_CPU_ISA is \"%s\", which is none of the instruction sets that this "
                               "machine runs; unset it, or set it to %s",
                               shard_env_string("SHARD_CPU_ISA", ""), SETS > 1 ? "baseline, v3 or v4" : "baseline");
    return picked;
}

const shard_cpu_head_kernels *shard_cpu_head_kernels_picked(void)
{
    return shard_cpu_kernels() ? picked_head : NULL;
}
