#include <shard/base.h>

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

const char *shard_version(void)
{
    return TEXT(SHARD_VERSION_MAJOR) "." TEXT(SHARD_VERSION_MINOR) "." TEXT(SHARD_VERSION_PATCH);
}
