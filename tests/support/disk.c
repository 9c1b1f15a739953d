#include "support/disk.h"

#include "support/check.h"
#include "support/scratch.h"

#include "comm/comm.h"

#include <shard/distributed.h>

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CALLS_MOST = 2000, DATA_MOST = 8 << 20, FILE_MOST = 4 << 20, SECTOR = 512, PATH = 120, NODES = 64 };

typedef enum event_kind { WRITE, SIZE, SYNC, CREATE, MAKE_DIRECTORY, RENAME, REMOVE, OTHER } event_kind;

typedef struct event {
    event_kind kind;
    int rank;
    char path[PATH], to[PATH]; /* from the folder on, "" itself; to: of a rename */
    int node;                  /* set by disk_end: the file or directory */
    size_t offset, bytes;      /* of a write; bytes: the size that is set */
    size_t data;               /* of a write: its place in the record's data */
} event;

/* A call is entered before it is made, and has ended when its rank enters another. */
typedef struct record {
    int count, direct;
    size_t used;
    event events[CALLS_MOST];
    unsigned char data[DATA_MOST];
} record;

/* A file or directory, whatever its names; data: of a file from before the save. */
typedef struct file_node {
    bool directory;
    unsigned char *data;
    size_t bytes;
} file_node;

typedef struct names {
    int count;
    struct {
        char path[PATH];
        int node;
    } at[NODES];
} names;

static record *record_of;
static char folder_path[PATH_MAX], real_path[PATH_MAX];
static file_node nodes[NODES];
static int node_count;
static names start;

/* ---- names ---- */

static int find(const names *n, const char *path)
{
    for (int i = 0; i < n->count; i++)
        if (strcmp(n->at[i].path, path) == 0)
            return i;
    return -1;
}

static void unbind(names *n, const char *path)
{
    int i = find(n, path);
    if (i >= 0)
        n->at[i] = n->at[--n->count];
}

static void bind_name(names *n, const char *path, int node)
{
    unbind(n, path);
    ck_assert_int_lt(n->count, NODES);
    snprintf(n->at[n->count].path, PATH, "%s", path);
    n->at[n->count++].node = node;
}

static void parent_of(const char *path, char parent[PATH])
{
    const char *slash = strrchr(path, '/');
    snprintf(parent, PATH, "%.*s", slash ? (int)(slash - path) : 0, path);
}

static bool has_parent(const names *n, const char *path)
{
    char parent[PATH];
    parent_of(path, parent);
    return !*parent || (find(n, parent) >= 0 && has_parent(n, parent));
}

static bool is_empty(const names *n, const char *path)
{
    char parent[PATH];
    for (int i = 0; i < n->count; i++) {
        parent_of(n->at[i].path, parent);
        if (strcmp(parent, path) == 0)
            return false;
    }
    return true;
}

static int add_node(bool directory)
{
    ck_assert_int_lt(node_count, NODES);
    nodes[node_count] = (file_node){.directory = directory};
    return node_count++;
}

/* ---- recording ---- */

/* False: it lies elsewhere. */
static bool inside(const char *path, char relative[PATH])
{
    const char *folders[] = {folder_path, real_path};
    for (int i = 0; i < 2; i++) {
        size_t length = strlen(folders[i]);
        if (strncmp(path, folders[i], length) == 0 && (!path[length] || path[length] == '/')) {
            ck_assert_uint_lt(strlen(path + length), PATH);
            strcpy(relative, path[length] ? path + length + 1 : "");
            return true;
        }
    }
    return false;
}

static bool find_path(const file_call *call, event *e)
{
    char link[40], path[PATH_MAX];
    if (call->path)
        return inside(call->path, e->path) && (!call->to || inside(call->to, e->to));
    snprintf(link, sizeof link, "/proc/self/fd/%d", call->descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    ck_assert_int_gt(length, 0);
    path[length] = '\0';
    return !strstr(path, " (deleted)") && inside(path, e->path);
}

static event_kind kind_of(const file_call *call)
{
    switch (call->kind) {
    case CALL_OPEN:
        return call->flags & O_CREAT && access(call->path, F_OK) != 0 ? CREATE : call->flags & O_TRUNC ? SIZE : OTHER;
    case CALL_PWRITE:
        return WRITE;
    case CALL_FALLOCATE:
    case CALL_FTRUNCATE:
        return SIZE;
    case CALL_FSYNC:
        return SYNC;
    case CALL_RENAME:
        return RENAME;
    case CALL_MKDIR:
        return access(call->path, F_OK) != 0 ? MAKE_DIRECTORY : OTHER;
    case CALL_UNLINK:
    case CALL_RMDIR:
        return access(call->path, F_OK) == 0 ? REMOVE : OTHER;
    default:
        return OTHER;
    }
}

ssize_t disk_watch(const file_call *call)
{
    event e = {.rank = shard_group_rank(shard_world()), .offset = (size_t)call->offset, .bytes = call->bytes};
    e.kind = find_path(call, &e) ? kind_of(call) : OTHER;
    if (e.kind == WRITE) {
        e.data = __atomic_fetch_add(&record_of->used, call->bytes, __ATOMIC_SEQ_CST);
        ck_assert_uint_le(e.data + call->bytes, DATA_MOST);
        memcpy(record_of->data + e.data, call->data, call->bytes);
        if (file_calls_are_direct(call->descriptor))
            __atomic_fetch_add(&record_of->direct, 1, __ATOMIC_SEQ_CST);
    }
    int place = __atomic_fetch_add(&record_of->count, 1, __ATOMIC_SEQ_CST);
    ck_assert_int_lt(place, CALLS_MOST);
    record_of->events[place] = e;
    return call->kind == CALL_FSYNC ? CALL_LEAVE : CALL_MAKE;
}

static int take_entry(const char *path, const struct stat *status, int kind, struct FTW *place)
{
    char relative[PATH];
    (void)status;
    ck_assert(inside(path, relative));
    if (place->level == 0)
        return 0;
    int number = add_node(kind == FTW_D);
    if (kind != FTW_D)
        nodes[number].data = read_file(path, &nodes[number].bytes);
    bind_name(&start, relative, number);
    return 0;
}

void disk_start(const char *folder)
{
    snprintf(folder_path, sizeof folder_path, "%s", folder);
    ck_assert_ptr_nonnull(realpath(folder, real_path));
    ck_assert_int_eq(nftw(folder, take_entry, 8, FTW_PHYS), 0);
    record_of = mmap(NULL, sizeof *record_of, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(record_of, MAP_FAILED);
}

void disk_free(void)
{
    for (int i = 0; i < node_count; i++)
        free(nodes[i].data);
    node_count = start.count = 0;
    munmap(record_of, sizeof *record_of);
}

int disk_direct_writes(void)
{
    return record_of->direct;
}

/* ---- what the calls did, one after the other ---- */

static void apply_name(names *n, const event *e)
{
    if (e->kind == RENAME) {
        unbind(n, e->path);
        bind_name(n, e->to, e->node);
    } else if (e->kind == REMOVE && (!nodes[e->node].directory || is_empty(n, e->path))) {
        unbind(n, e->path);
    } else if (e->kind == CREATE || e->kind == MAKE_DIRECTORY) {
        bind_name(n, e->path, e->node);
    }
}

int disk_end(void)
{
    names live = start;
    for (int i = 0; i < record_of->count; i++) {
        event *e = &record_of->events[i];
        int at = find(&live, e->path);
        if (e->kind == OTHER)
            continue;
        if (e->kind == CREATE || e->kind == MAKE_DIRECTORY)
            e->node = add_node(e->kind == MAKE_DIRECTORY);
        else
            e->node = at >= 0 ? live.at[at].node : -1;
        ck_assert_msg(e->node >= 0 || (e->kind == SYNC && !*e->path), "call %d is of \"%s\", which is not there", i, e->path);
        apply_name(&live, e);
    }
    return record_of->count;
}

int disk_rename(void)
{
    int i = 0;
    while (i < record_of->count && record_of->events[i].kind != RENAME)
        i++;
    return i;
}

/* ---- what the disk has of them ---- */

/* Whether the call of event i had ended when event j was entered. */
static bool ended(int i, int j)
{
    for (int next = i + 1; next <= j && next < record_of->count; next++)
        if (record_of->events[next].rank == record_of->events[i].rank)
            return true;
    return j >= record_of->count;
}

static bool is_name(const event *e)
{
    return e->kind == CREATE || e->kind == MAKE_DIRECTORY || e->kind == RENAME || e->kind == REMOVE;
}

/* Whether that sync is of what the event has changed: the file, or the directory of the name. */
static bool syncs(const event *sync, const event *e)
{
    char parent[PATH];
    parent_of(e->path, parent);
    return sync->kind == SYNC && (is_name(e) ? strcmp(sync->path, parent) == 0 : sync->node == e->node);
}

/* Whether a sync that has ended before the moment makes event i last. */
static bool is_synced(int i, const disk_moment *m)
{
    const event *e = &record_of->events[i];
    for (int j = i + 1; j < m->end; j++) {
        const event *sync = &record_of->events[j];
        if (syncs(sync, e) && (m->local || sync->rank == e->rank) && ended(i, j) && ended(j, m->end))
            return true;
    }
    return false;
}

/* Applies a write, or what is left of it. Returns where it ends in the file. */
static size_t apply_write(unsigned char *file, const event *e, bool synced)
{
    size_t last = 0;
    for (size_t at = 0; at < e->bytes;) {
        size_t next = (e->offset + at) / SECTOR * SECTOR + SECTOR - e->offset;
        next = next < e->bytes ? next : e->bytes;
        size_t end = synced ? next : rand() % 3 == 0 ? at : rand() % 8 == 0 ? at + (size_t)rand() % (next - at) : next;
        memcpy(file + e->offset + at, record_of->data + e->data + at, end - at);
        last = end > at ? e->offset + end : last;
        at = next;
    }
    return last;
}

/* Applies an event to the file's content and size. */
static void apply_content(unsigned char *file, size_t *size, const event *e, bool lasts)
{
    if (e->kind == SIZE)
        *size = lasts || rand() % 2 ? e->bytes : (size_t)rand() % (e->bytes + 1);
    if (e->kind == WRITE) {
        size_t end = apply_write(file, e, lasts);
        *size = end > *size ? end : *size;
    }
}

/* Makes the content of a file; returns its size. The writes of one are in the order of the calls, or those that were synced come
 * last. */
static size_t make_content(unsigned char *file, int node, const disk_moment *m, bool *changed)
{
    size_t size = nodes[node].bytes, most = size;
    bool in_order = rand() % 2;
    for (int i = 0; i < m->end; i++)
        if (record_of->events[i].node == node && record_of->events[i].offset + record_of->events[i].bytes > most)
            most = record_of->events[i].offset + record_of->events[i].bytes;
    ck_assert_uint_le(most, FILE_MOST);
    memset(file, 0, most);
    if (nodes[node].data)
        memcpy(file, nodes[node].data, size);
    for (int pass = in_order; pass < 2; pass++)
        for (int i = 0; i < m->end; i++) {
            const event *e = &record_of->events[i];
            if ((e->kind != WRITE && e->kind != SIZE) || e->node != node)
                continue;
            bool lasts = is_synced(i, m);
            *changed = true;
            if (in_order || lasts == (pass == 1))
                apply_content(file, &size, e, lasts);
        }
    return size;
}

static int remove_entry(const char *path, const struct stat *status, int kind, struct FTW *place)
{
    (void)status, (void)kind;
    return place->level == 0 ? 0 : remove(path);
}

static void make_names(names *n, const disk_moment *m, bool *changed)
{
    *n = start;
    for (int i = 0; i < m->end; i++) {
        const event *e = &record_of->events[i];
        if (is_name(e) && (is_synced(i, m) || rand() % 2)) {
            apply_name(n, e);
            *changed = true;
        }
    }
}

/* Directories before what lies in them. */
static int by_path(const void *a, const void *b)
{
    return strcmp(a, b);
}

bool disk_make(const disk_moment *m, const char *folder)
{
    static unsigned char content[FILE_MOST];
    names n;
    bool changed = false;
    char path[PATH_MAX];
    nftw(folder, remove_entry, 8, FTW_PHYS | FTW_DEPTH);
    make_names(&n, m, &changed);
    qsort(n.at, (size_t)n.count, sizeof *n.at, by_path);
    for (int i = 0; i < n.count; i++) {
        if (!has_parent(&n, n.at[i].path))
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, n.at[i].path);
        if (nodes[n.at[i].node].directory)
            ck_assert_int_eq(mkdir(path, 0700), 0);
        else
            write_file(path, content, make_content(content, n.at[i].node, m, &changed));
    }
    return changed;
}

int disk_is_renamed(const disk_moment *m)
{
    int i = disk_rename();
    return i >= m->end ? 0 : is_synced(i, m) ? 1 : -1;
}
