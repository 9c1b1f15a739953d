/*
 * The pickle machine with four kinds of value. Marks, lists and the tuple are on its stack; bytes are positions in the file. The
 * memo is an array by number; a number may be at most the count of the values so far, so that memory grows with the file.
 */
#include "pairs.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Opcodes of pickle; Python's pickletools has their descriptions. */
enum {
    PROTO = 0x80,
    FRAME = 0x95,
    MARK = '(',
    STOP = '.',
    POP = '0',
    EMPTY_LIST = ']',
    LIST = 'l',
    APPEND = 'a',
    APPENDS = 'e',
    TUPLE = 't',
    TUPLE2 = 0x86,
    NEWTRUE = 0x88,
    NEWFALSE = 0x89,
    INT = 'I',
    BININT1 = 'K',
    BINSTRING = 'T',
    SHORT_BINSTRING = 'U',
    BINBYTES = 'B',
    SHORT_BINBYTES = 'C',
    BINBYTES8 = 0x8e,
    BYTEARRAY8 = 0x96,
    PUT = 'p',
    BINPUT = 'q',
    LONG_BINPUT = 'r',
    MEMOIZE = 0x94,
    GET = 'g',
    BINGET = 'h',
    LONG_BINGET = 'j',
};

#define MOST_PROTOCOL 5
#define LISTS 2

typedef enum kind { NOTHING = 0, A_MARK, BYTES, BOOL, A_LIST, A_TUPLE } kind;

/* BYTES: where they are; BOOL: first is 0 or 1; A_LIST: first is its number; A_TUPLE: the numbers of its lists. */
typedef struct value {
    kind kind;
    size_t first, second;
} value;

typedef struct values {
    value *at;
    size_t count, capacity;
} values;

struct pair_set {
    char *path;
    uint8_t *bytes;
    size_t size;
    values list[LISTS];
    const values *images, *same; /* of these; bytes and bools */
};

typedef struct machine {
    pair_set *set;
    size_t at, opcode; /* the next byte; where the opcode is that runs */
    values stack, memo;
    size_t lists;
} machine;

static shard_status wrong(const machine *m, const char *why)
{
    return shard_error(SHARD_ERROR_FORMAT, "%s: byte %zu: %s", m->set->path, m->opcode, why);
}

static shard_status add(machine *m, values *to, value added)
{
    if (to->count == to->capacity) {
        size_t grown = to->capacity + to->capacity / 2 + 64;
        value *larger = reallocarray(to->at, grown, sizeof *larger);
        if (!larger)
            return shard_error(SHARD_ERROR_MEMORY, "%s: no memory for %zu values", m->set->path, grown);
        to->at = larger;
        to->capacity = grown;
    }
    to->at[to->count++] = added;
    return SHARD_OK;
}

static shard_status push(machine *m, value pushed)
{
    return add(m, &m->stack, pushed);
}

static value pop(machine *m)
{
    return m->stack.count ? m->stack.at[--m->stack.count] : (value){NOTHING, 0, 0};
}

/* ---- arguments ---- */

/* A little-endian number of `bytes` bytes. */
static shard_status take_number(machine *m, size_t bytes, uint64_t *number)
{
    if (m->set->size - m->at < bytes)
        return wrong(m, "the file ends within an opcode's argument");
    *number = 0;
    for (size_t i = 0; i < bytes; i++)
        *number |= (uint64_t)m->set->bytes[m->at + i] << 8 * i;
    m->at += bytes;
    return SHARD_OK;
}

/* The line of digits behind a text opcode, as "01\n". */
static shard_status take_line(machine *m, uint64_t *number)
{
    size_t begin = m->at;
    *number = 0;
    while (m->at < m->set->size && m->set->bytes[m->at] >= '0' && m->set->bytes[m->at] <= '9' && m->at - begin < 10)
        *number = *number * 10 + (uint64_t)(m->set->bytes[m->at++] - '0');
    if (m->at == begin || m->at >= m->set->size || m->set->bytes[m->at] != '\n')
        return wrong(m, "its argument is not a line with a whole number of at most 10 digits");
    m->at++;
    return SHARD_OK;
}

static shard_status push_bytes(machine *m, size_t length_bytes)
{
    uint64_t length = 0;
    shard_status status = take_number(m, length_bytes, &length);
    if (status != SHARD_OK)
        return status;
    if (length > m->set->size - m->at)
        return wrong(m, "bytes that go beyond the end of the file");
    size_t begin = m->at;
    m->at += (size_t)length;
    return push(m, (value){BYTES, begin, (size_t)length});
}

static shard_status push_bool(machine *m, uint64_t number)
{
    return number > 1 ? wrong(m, "a number that is neither 0 nor 1") : push(m, (value){BOOL, (size_t)number, 0});
}

/* ---- lists and the tuple ---- */

/* The position behind the topmost mark; 0: there is none. */
static size_t find_mark(const machine *m)
{
    size_t at = m->stack.count;
    while (at > 0 && m->stack.at[at - 1].kind != A_MARK)
        at--;
    return at;
}

static shard_status push_list(machine *m)
{
    return m->lists == LISTS ? wrong(m, "a third list; there are images and bools") : push(m, (value){A_LIST, m->lists++, 0});
}

/* Moves the values from `first` on to the end of the list. */
static shard_status append(machine *m, size_t first, value list)
{
    if (list.kind != A_LIST)
        return wrong(m, "appends to a value that is not a list");
    values *to = &m->set->list[list.first];
    for (size_t i = first; i < m->stack.count; i++) {
        value added = m->stack.at[i];
        if (added.kind != BYTES && added.kind != BOOL)
            return wrong(m, "appends a value that is neither bytes nor a bool");
        if (to->count > 0 && to->at[0].kind != added.kind)
            return wrong(m, "a list of both bytes and bools");
        shard_status status = add(m, to, added);
        if (status != SHARD_OK)
            return status;
    }
    return SHARD_OK;
}

static shard_status append_one(machine *m)
{
    size_t count = m->stack.count;
    if (count < 2)
        return wrong(m, "appends without a list");
    shard_status status = append(m, count - 1, m->stack.at[count - 2]);
    m->stack.count = count - 1;
    return status;
}

static shard_status append_many(machine *m)
{
    size_t first = find_mark(m);
    if (first < 2)
        return wrong(m, "appends without a mark, or without a list before it");
    shard_status status = append(m, first, m->stack.at[first - 2]);
    m->stack.count = first - 1;
    return status;
}

/* The list of what is behind the mark. */
static shard_status make_list(machine *m)
{
    size_t first = find_mark(m);
    if (first == 0)
        return wrong(m, "a list without a mark");
    if (m->lists == LISTS)
        return wrong(m, "a third list; there are images and bools");
    value list = {A_LIST, m->lists++, 0};
    shard_status status = append(m, first, list);
    m->stack.count = first - 1;
    return status == SHARD_OK ? push(m, list) : status;
}

/* A tuple of the two topmost values; `marked`: behind a mark, which goes too. */
static shard_status make_tuple(machine *m, bool marked)
{
    size_t first = marked ? find_mark(m) : m->stack.count - (m->stack.count < 2 ? m->stack.count : 2);
    if (m->stack.count - first != 2 || (marked && first == 0))
        return wrong(m, "a tuple that is not of two values");
    value images = m->stack.at[first], same = m->stack.at[first + 1];
    if (images.kind != A_LIST || same.kind != A_LIST || images.first == same.first)
        return wrong(m, "a tuple that is not of two lists");
    m->stack.count = marked ? first - 1 : first;
    return push(m, (value){A_TUPLE, images.first, same.first});
}

/* ---- the memo ---- */

static shard_status put(machine *m, uint64_t number)
{
    if (m->stack.count == 0 || m->stack.at[m->stack.count - 1].kind == A_MARK)
        return wrong(m, "notes a value, and there is none");
    if (number > m->memo.count + 1) /* Python's pickler of protocol 0 counts from 1 */
        return wrong(m, "notes a value by a number that is not the next one");
    value top = m->stack.at[m->stack.count - 1];
    while (number > m->memo.count) {
        shard_status status = add(m, &m->memo, (value){NOTHING, 0, 0});
        if (status != SHARD_OK)
            return status;
    }
    if (number == m->memo.count)
        return add(m, &m->memo, top);
    m->memo.at[number] = top;
    return SHARD_OK;
}

static shard_status get(machine *m, uint64_t number)
{
    if (number >= m->memo.count || m->memo.at[number].kind == NOTHING)
        return wrong(m, "takes a value that was not noted");
    if (m->memo.at[number].kind != BYTES && m->memo.at[number].kind != BOOL)
        return wrong(m, "takes a noted value that is neither bytes nor a bool");
    return push(m, m->memo.at[number]);
}

/* ---- opcodes ---- */

static shard_status refuse(const machine *m, int opcode)
{
    static const char calls[] = "cRoibQP\x81\x82\x83\x84\x92\x93";
    if (opcode != 0 && strchr(calls, opcode))
        return shard_error(SHARD_ERROR_FORMAT,
                           "%s: byte %zu: the opcode 0x%02x calls a function, or names an object; a list of pairs has none",
                           m->set->path, m->opcode, (unsigned)opcode);
    return shard_error(SHARD_ERROR_FORMAT, "%s: byte %zu: the opcode 0x%02x is none of those of bytes, bools, lists and a tuple",
                       m->set->path, m->opcode, (unsigned)opcode);
}

static shard_status check_protocol(machine *m)
{
    uint64_t protocol = 0;
    shard_status status = take_number(m, 1, &protocol);
    return status == SHARD_OK && protocol > MOST_PROTOCOL ? wrong(m, "a protocol above 5") : status;
}

static shard_status with_number(machine *m, size_t bytes, shard_status (*function)(machine *, uint64_t))
{
    uint64_t number = 0;
    shard_status status = bytes ? take_number(m, bytes, &number) : take_line(m, &number);
    return status == SHARD_OK ? function(m, number) : status;
}

/* A frame is a hint for reading ahead. */
static shard_status skip_frame(machine *m, uint64_t length)
{
    return length > m->set->size - m->at ? wrong(m, "a frame that goes beyond the end of the file") : SHARD_OK;
}

static shard_status run_data(machine *m, int opcode)
{
    switch (opcode) {
    case SHORT_BINSTRING:
    case SHORT_BINBYTES:
        return push_bytes(m, 1);
    case BINSTRING:
    case BINBYTES:
        return push_bytes(m, 4);
    case BINBYTES8:
    case BYTEARRAY8:
        return push_bytes(m, 8);
    case NEWTRUE:
    case NEWFALSE:
        return push_bool(m, opcode == NEWTRUE);
    case INT:
        return with_number(m, 0, push_bool);
    case BININT1:
        return with_number(m, 1, push_bool);
    default:
        return refuse(m, opcode);
    }
}

static shard_status run_opcode(machine *m, int opcode)
{
    switch (opcode) {
    case PROTO:
        return check_protocol(m);
    case FRAME:
        return with_number(m, 8, skip_frame);
    case MARK:
        return push(m, (value){A_MARK, 0, 0});
    case POP:
        return pop(m).kind == NOTHING ? wrong(m, "removes a value, and there is none") : SHARD_OK;
    case EMPTY_LIST:
        return push_list(m);
    case LIST:
        return make_list(m);
    case APPEND:
        return append_one(m);
    case APPENDS:
        return append_many(m);
    case TUPLE:
        return make_tuple(m, true);
    case TUPLE2:
        return make_tuple(m, false);
    case PUT:
        return with_number(m, 0, put);
    case BINPUT:
        return with_number(m, 1, put);
    case LONG_BINPUT:
        return with_number(m, 4, put);
    case MEMOIZE:
        return put(m, m->memo.count);
    case GET:
        return with_number(m, 0, get);
    case BINGET:
        return with_number(m, 1, get);
    case LONG_BINGET:
        return with_number(m, 4, get);
    default:
        return run_data(m, opcode);
    }
}

/* STOP leaves the tuple of the lists, and nothing follows. */
static shard_status finish(machine *m)
{
    value last = pop(m);
    pair_set *set = m->set;
    if (last.kind != A_TUPLE || m->stack.count > 0)
        return wrong(m, "the pickle is not a tuple of two lists");
    if (m->at != set->size)
        return wrong(m, "bytes behind the end of the pickle");
    const values *images = &set->list[last.first], *same = &set->list[last.second];
    if (images->count == 0 || images->at[0].kind != BYTES || same->count == 0 || same->at[0].kind != BOOL)
        return wrong(m, "the tuple is not of a list of bytes and a list of bools");
    if (images->count / 2 != same->count || images->count % 2 != 0)
        return shard_error(SHARD_ERROR_FORMAT, "%s: %zu images and %zu bools; a pair has two images and a bool", set->path,
                           images->count, same->count);
    set->images = images;
    set->same = same;
    return SHARD_OK;
}

static shard_status unpickle(machine *m)
{
    while (m->at < m->set->size) {
        m->opcode = m->at;
        int opcode = m->set->bytes[m->at++];
        if (opcode == STOP)
            return finish(m);
        shard_status status = run_opcode(m, opcode);
        if (status != SHARD_OK)
            return status;
    }
    m->opcode = m->at;
    return wrong(m, "the file ends before the pickle does");
}

/* ---- the set ---- */

pair_set *pair_set_read(const char *path, uint8_t *bytes, size_t size)
{
    pair_set *set = calloc(1, sizeof *set);
    if (!set || !(set->path = strdup(path))) {
        shard_error(SHARD_ERROR_MEMORY, "%s: no memory", path);
        free(bytes);
        free(set);
        return NULL;
    }
    set->bytes = bytes;
    set->size = size;
    machine m = {.set = set};
    shard_status status = unpickle(&m);
    free(m.stack.at);
    free(m.memo.at);
    if (status == SHARD_OK)
        return set;
    pair_set_close(set);
    return NULL;
}

static shard_status read_bytes(const char *path, int descriptor, uint8_t **bytes, size_t *size)
{
    struct stat found;
    if (fstat(descriptor, &found) != 0)
        return shard_error(SHARD_ERROR_IO, "%s: %s", path, strerror(errno));
    if (!S_ISREG(found.st_mode))
        return shard_error(SHARD_ERROR_IO, "%s: not a regular file", path);
    size_t whole = (size_t)found.st_size;
    *bytes = malloc(whole + 1);
    if (!*bytes)
        return shard_error(SHARD_ERROR_MEMORY, "%s: no memory for %zu bytes", path, whole);
    *size = 0;
    for (ssize_t count = 1; count != 0 && *size < whole;) {
        count = read(descriptor, *bytes + *size, whole - *size);
        if (count < 0 && errno != EINTR)
            return shard_error(SHARD_ERROR_IO, "%s: %s", path, strerror(errno));
        *size += count > 0 ? (size_t)count : 0;
    }
    return SHARD_OK;
}

pair_set *pair_set_open(const char *path)
{
    uint8_t *bytes = NULL;
    size_t size = 0;
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0) {
        shard_error(SHARD_ERROR_IO, "%s: %s", path, strerror(errno));
        return NULL;
    }
    shard_status status = read_bytes(path, descriptor, &bytes, &size);
    close(descriptor);
    if (status == SHARD_OK)
        return pair_set_read(path, bytes, size);
    free(bytes);
    return NULL;
}

void pair_set_close(pair_set *set)
{
    if (!set)
        return;
    for (int i = 0; i < LISTS; i++)
        free(set->list[i].at);
    free(set->path);
    free(set->bytes);
    free(set);
}

int64_t pair_set_count(const pair_set *set)
{
    return (int64_t)set->same->count;
}

bool pair_set_same(const pair_set *set, int64_t pair)
{
    return set->same->at[pair].first == 1;
}

shard_status pair_set_image(const pair_set *set, int64_t number, image_file *file)
{
    char name[4096 + 64];
    value found = set->images->at[number];
    snprintf(name, sizeof name, "%s: image %" PRId64 " at byte %zu", set->path, number, found.first);
    shard_status status = image_file_reserve(file, name, (int64_t)found.second);
    if (status == SHARD_OK && found.second > 0)
        memcpy(file->bytes, set->bytes + found.first, found.second);
    return status;
}

static int64_t source_label(const void *of, int64_t number)
{
    (void)of;
    return number / 2;
}

static shard_status source_read(const void *of, int64_t number, image_file *file)
{
    return pair_set_image(of, number, file);
}

image_source pair_set_source(const pair_set *set)
{
    return (image_source){.of = set, .images = (int64_t)set->images->count, .label = source_label, .read = source_read};
}
