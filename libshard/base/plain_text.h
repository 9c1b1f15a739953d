/* Formats with a decimal point, whatever the program's locale: for texts that ranks compare, and for files. */
#ifndef SHARD_BASE_PLAIN_TEXT_H
#define SHARD_BASE_PLAIN_TEXT_H

#include <shard/base.h>

#include <stdarg.h>

/* snprintf and vsnprintf in the C locale. Other threads keep their locale. */
int shard_plain_snprintf(char *text, size_t bytes, const char *format, ...) SHARD_PRINTF(3, 4);
int shard_plain_vsnprintf(char *text, size_t bytes, const char *format, va_list arguments) SHARD_PRINTF(3, 0);

#endif
