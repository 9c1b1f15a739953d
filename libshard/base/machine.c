#include "base/machine.h"

#include "base/hash.h"

#include <stdio.h>
#include <unistd.h>

uint64_t shard_hash_machine(void)
{
    char text[256] = "";
    gethostname(text, sizeof text - 1);
    uint64_t hash = shard_hash_text(SHARD_HASH_START, text);
    FILE *boot = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (boot && fgets(text, sizeof text, boot))
        hash = shard_hash_text(hash, text);
    if (boot)
        fclose(boot);
    return hash;
}
