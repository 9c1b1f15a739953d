/*
 * CRC-64 with the polynomial of the NVM Express specification (NVME, Rocksoft; crc64nvme of Amazon S3). It is zlib's
 * crc32 with 64 bits: it finds every change that lies within 64 neighbouring bits. The checksum of two ranges, one
 * behind the other, is computed from theirs, so that it does not depend on how data is divided over ranks:
 *     shard_crc64(0, both) == shard_crc64_shift(shard_crc64(0, first), bytes of the second) ^ shard_crc64(0, second)
 */
#ifndef SHARD_BASE_CRC64_H
#define SHARD_BASE_CRC64_H

#include <stdbool.h>
#include <stdint.h>

/* The checksum of the data behind those of which `crc` is the checksum (0: none). */
uint64_t shard_crc64(uint64_t crc, const void *data, int64_t bytes);

/* The factor by which a checksum is multiplied if so many bytes follow, whose own checksum is then added by XOR. It is a
 * polynomial modulo the CRC's, x^(8 * bytes); the highest bit is the coefficient of x^0. */
uint64_t shard_crc64_factor(int64_t bytes);
/* The product of two polynomials modulo the CRC's. */
uint64_t shard_crc64_multiply(uint64_t a, uint64_t b);
/* The product with the factor for so many bytes. */
uint64_t shard_crc64_shift(uint64_t crc, int64_t bytes);

/* The functions for one kind of processor. All have the same results. */
typedef struct shard_crc64_form {
    const char *name;
    bool (*runs)(void); /* whether this processor has the instructions */
    uint64_t (*extend)(uint64_t crc, const unsigned char *data, int64_t bytes);
    uint64_t (*multiply)(uint64_t a, uint64_t b);
} shard_crc64_form;

/* The i-th form, slower ones first, for tests; NULL behind the last. */
const shard_crc64_form *shard_crc64_form_at(int i);

#endif
