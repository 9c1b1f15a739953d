#include "tensorboard.h"

#include "files.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct tensorboard {
    FILE *file;
    char path[PATH_MAX];
};

/* ---- protocol buffers: a message's bytes, field by field ---- */

#define MESSAGE_BYTES 256

typedef struct message {
    unsigned char bytes[MESSAGE_BYTES];
    size_t size;
} message;

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 }; /* wire types */

/* All fields of an event together are shorter than MESSAGE_BYTES, as tags are of at most 127 bytes. */
static void put_bytes(message *to, const void *bytes, size_t size)
{
    memcpy(to->bytes + to->size, bytes, size);
    to->size += size;
}

static void put_varint(message *to, uint64_t value)
{
    while (value >= 0x80) {
        to->bytes[to->size++] = (unsigned char)(value | 0x80);
        value >>= 7;
    }
    to->bytes[to->size++] = (unsigned char)value;
}

static void put_key(message *to, unsigned field, unsigned type)
{
    put_varint(to, (uint64_t)(field << 3 | type));
}

/* The processor is little-endian, as the format is. */
static void put_double(message *to, unsigned field, double value)
{
    put_key(to, field, FIXED64);
    put_bytes(to, &value, sizeof value);
}

static void put_field(message *to, unsigned field, const void *bytes, size_t size)
{
    put_key(to, field, BYTES);
    put_varint(to, size);
    put_bytes(to, bytes, size);
}

/* ---- records ---- */

/* CRC-32C (Castagnoli), bit by bit: records are short. */
static uint32_t crc32c(const void *data, size_t size)
{
    const unsigned char *bytes = data;
    uint32_t crc = 0xFFFFFFFFu;
    for (size_t i = 0; i < size; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ 0x82F63B78u : crc >> 1;
    }
    return ~crc;
}

/* As TFRecord stores it, so that a record may hold other records' checksums. */
static uint32_t masked_crc(const void *data, size_t size)
{
    uint32_t crc = crc32c(data, size);
    return (crc >> 15 | crc << 17) + 0xA282EAD8u;
}

static shard_status fail(const tensorboard *board)
{
    return shard_error(SHARD_ERROR_IO, "--tensorboard: %s: %s", board->path, strerror(errno));
}

static shard_status write_record(tensorboard *board, const message *event)
{
    uint64_t length = event->size;
    uint32_t of_length = masked_crc(&length, sizeof length), of_data = masked_crc(event->bytes, event->size);
    bool written =
        fwrite(&length, sizeof length, 1, board->file) == 1 && fwrite(&of_length, sizeof of_length, 1, board->file) == 1 &&
        fwrite(event->bytes, 1, event->size, board->file) == event->size && fwrite(&of_data, sizeof of_data, 1, board->file) == 1;
    return written ? SHARD_OK : fail(board);
}

/* ---- events ---- */

/* Fields of tensorflow.Event, tensorflow.SessionLog, tensorflow.Summary and tensorflow.Summary.Value. */
enum { EVENT_WALL_TIME = 1, EVENT_STEP = 2, EVENT_FILE_VERSION = 3, EVENT_SUMMARY = 5, EVENT_SESSION_LOG = 7 };
enum { SESSION_STATUS = 1, SESSION_START = 1 };
enum { SUMMARY_VALUE = 1 };
enum { VALUE_TAG = 1, VALUE_SIMPLE_VALUE = 2 };

static double wall_time(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void put_step(message *to, int64_t step)
{
    put_key(to, EVENT_STEP, VARINT);
    put_varint(to, (uint64_t)step);
}

static shard_status write_start(tensorboard *board, int64_t step)
{
    message session = {.size = 0}, event = {.size = 0};
    put_key(&session, SESSION_STATUS, VARINT);
    put_varint(&session, SESSION_START);
    put_double(&event, EVENT_WALL_TIME, wall_time());
    put_step(&event, step);
    put_field(&event, EVENT_SESSION_LOG, session.bytes, session.size);
    return write_record(board, &event);
}

tensorboard *tensorboard_open(const char *folder, int64_t goes_on)
{
    static const char version[] = "brain.Event:2";
    tensorboard *board = calloc(1, sizeof *board);
    char host[64] = "localhost";
    if (!board) {
        shard_error(SHARD_ERROR_MEMORY, "no memory for TensorBoard's file");
        return NULL;
    }
    gethostname(host, sizeof host - 1);
    int length = snprintf(board->path, sizeof board->path, "%s/events.out.tfevents.%010.0f.%s.%d", folder, wall_time(), host,
                          (int)getpid());
    bool made = files_make_folder(folder);
    if (length >= (int)sizeof board->path)
        errno = ENAMETOOLONG;
    else if (made)
        board->file = fopen(board->path, "ab"); /* a run that begins again within a second adds to it */
    message event = {.size = 0};
    put_double(&event, EVENT_WALL_TIME, wall_time());
    put_field(&event, EVENT_FILE_VERSION, version, sizeof version - 1);
    if (!board->file)
        fail(board);
    else if (write_record(board, &event) == SHARD_OK && (goes_on == 0 || write_start(board, goes_on) == SHARD_OK) &&
             tensorboard_flush(board) == SHARD_OK)
        return board;
    tensorboard_close(board);
    return NULL;
}

shard_status tensorboard_add_scalar(tensorboard *board, const char *tag, double value, int64_t step)
{
    float number = (float)value;
    message point = {.size = 0}, summary = {.size = 0}, event = {.size = 0};
    put_field(&point, VALUE_TAG, tag, strnlen(tag, 127));
    put_key(&point, VALUE_SIMPLE_VALUE, FIXED32);
    put_bytes(&point, &number, sizeof number);
    put_field(&summary, SUMMARY_VALUE, point.bytes, point.size);
    put_double(&event, EVENT_WALL_TIME, wall_time());
    put_step(&event, step);
    put_field(&event, EVENT_SUMMARY, summary.bytes, summary.size);
    return write_record(board, &event);
}

shard_status tensorboard_flush(tensorboard *board)
{
    return fflush(board->file) == 0 ? SHARD_OK : fail(board);
}

shard_status tensorboard_close(tensorboard *board)
{
    if (!board)
        return SHARD_OK;
    shard_status status = board->file && fclose(board->file) != 0 ? fail(board) : SHARD_OK;
    free(board);
    return status;
}
