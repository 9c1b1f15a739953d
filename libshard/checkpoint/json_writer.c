#include "checkpoint/json_writer.h"

#include "base/memory.h"
#include "checkpoint/json_reader.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static void add_bytes(json_writer *writer, const char *text, size_t bytes)
{
    if (writer->status == SHARD_OK)
        writer->status = shard_grow(&writer->text, &writer->capacity, writer->bytes + (int64_t)bytes, 1);
    if (writer->status != SHARD_OK)
        return;
    memcpy(writer->text + writer->bytes, text, bytes);
    writer->bytes += (int64_t)bytes;
}

void json_writer_add(json_writer *writer, const char *text)
{
    add_bytes(writer, text, strlen(text));
}

static void add_escape(json_writer *writer, char c)
{
    static const char letters[] = "\"\\bfnrt", values[] = "\"\\\b\f\n\r\t";
    char escape[8] = "\\";
    const char *known = strchr(values, c);
    if (known)
        escape[1] = letters[known - values];
    else
        snprintf(escape, sizeof escape, "\\u%04X", (unsigned)c & 0x1f);
    json_writer_add(writer, escape);
}

void json_writer_string(json_writer *writer, const char *text)
{
    json_writer_add(writer, "\"");
    for (const char *end = text; *end; text = end) {
        while ((unsigned char)*end >= 0x20 && *end != '"' && *end != '\\')
            end++;
        add_bytes(writer, text, (size_t)(end - text));
        if (*end)
            add_escape(writer, *end++);
    }
    json_writer_add(writer, "\"");
}

void json_writer_integer(json_writer *writer, int64_t value)
{
    char digits[24];
    snprintf(digits, sizeof digits, "%" PRId64, value);
    json_writer_add(writer, digits);
}

const char *json_writer_end(json_writer *writer)
{
    add_bytes(writer, "", 1);
    return writer->status == SHARD_OK ? writer->text : NULL;
}

bool json_is_utf8(const char *text)
{
    json_reader reader = json_reader_start(text, strlen(text));
    for (int bytes; reader.at < reader.end; reader.at += bytes)
        if ((bytes = json_reader_character_bytes(&reader)) == 0)
            return false;
    return true;
}
