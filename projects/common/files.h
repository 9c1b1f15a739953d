/* Folders and small files that are there after a power failure. */
#ifndef COMMON_FILES_H
#define COMMON_FILES_H

#include <shard/base.h>

#include <stdbool.h>
#include <stdio.h>

/* Makes the folder and those that it lies in, if they are not there. Their names last, also if another process has just made
 * them. False with errno set. */
bool files_make_folder(const char *path);

/* Writes the path of a file in a folder to path [PATH_MAX]. IO for one that is too long; `what`: of the error, "--output". */
shard_status files_join(char *path, const char *what, const char *folder, const char *name);

/* Opens a file of data for reading; NULL: IO, it cannot be, or it is not a regular file. A FIFO does not wait for a writer. */
FILE *files_open(const char *path);

/* Reads a line without its end to line [room], ended by a 0; bytes of 0 stay. Returns its length: `room` for a longer line, of
 * which line has the beginning, and -1 at the end of the file or after a failed read (ferror). */
int64_t files_read_line(FILE *file, char *line, int64_t room);

/* Makes a file of the bytes that `write` writes: path is the old file or the whole new one, also after a power failure. Errors:
 * IO. */
shard_status files_save(const char *path, void (*write)(const void *of, FILE *to), const void *of);

#endif
