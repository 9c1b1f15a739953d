#include "descendants.h"

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct process {
    pid_t id, parent;
} process;

typedef struct process_table {
    process *rows;
    int count, capacity;
} process_table;

/* Reads the fields of /proc/<id>/stat: "id (name) state parent ...", where the name may have any characters. False
 * for a process that has ended, reaped or not. One whose first thread has ended has its state, Z, while others go on. */
static bool read_process(const char *id, process *row)
{
    char path[64], text[512], state;
    int threads;
    snprintf(path, sizeof path, "/proc/%.20s/stat", id);
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    size_t length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[length] = '\0';
    const char *behind_name = strrchr(text, ')');
    row->id = (pid_t)strtol(id, NULL, 10);
    return behind_name &&
           sscanf(behind_name, ") %c %d %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %d", &state, &row->parent,
                  &threads) == 3 &&
           (state != 'Z' || threads > 1) && state != 'X';
}

static bool grow(void **array, int count, int *capacity, size_t size)
{
    if (count < *capacity)
        return true;
    int wanted = *capacity ? 2 * *capacity : 256;
    void *larger = realloc(*array, (size_t)wanted * size);
    if (!larger)
        return false;
    *array = larger;
    *capacity = wanted;
    return true;
}

static process_table read_all(void)
{
    process_table table = {0};
    DIR *folder = opendir("/proc");
    if (!folder)
        return table;
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        process row;
        if (entry->d_name[0] < '1' || entry->d_name[0] > '9' || !read_process(entry->d_name, &row))
            continue;
        if (!grow((void **)&table.rows, table.count, &table.capacity, sizeof *table.rows))
            break;
        table.rows[table.count++] = row;
    }
    closedir(folder);
    return table;
}

static bool contains(const process_list *list, pid_t id)
{
    for (int i = 0; list && i < list->count; i++)
        if (list->ids[i] == id)
            return true;
    return false;
}

process_list find_descendants(const process_list *except)
{
    process_table table = read_all();
    process_list found = {0};
    pid_t root = getpid();
    for (bool more = true; more;) {
        more = false;
        for (int i = 0; i < table.count; i++) {
            process row = table.rows[i];
            if ((row.parent != root && !contains(&found, row.parent)) || contains(&found, row.id) || contains(except, row.id))
                continue;
            if (!grow((void **)&found.ids, found.count, &found.capacity, sizeof *found.ids))
                break;
            found.ids[found.count++] = row.id;
            more = true;
        }
    }
    free(table.rows);
    return found;
}
