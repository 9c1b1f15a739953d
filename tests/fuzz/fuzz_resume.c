/*
 * Lines "name=value" as the metadata of a checkpoint that the trainer resumes, and lines "/name" as folders next to it: the
 * position is refused with an error of one line, or taken, and then the model is missing; no other folder than step-N with a
 * checkpoint is found.
 */
#include "checkpoint/safetensors.h"
#include "trainer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FOLDERS = 8 };

static void must(bool holds)
{
    if (!holds)
        abort();
}

static char directory[64] = "/dev/shm/shard-fuzz-XXXXXX", path[128];

static void remove_all(void)
{
    char step[128];
    unlink(path);
    snprintf(step, sizeof step, "%s/step-000007", directory);
    rmdir(step);
    rmdir(directory);
}

static void start(options *wanted)
{
    char *words[] = {"imagenet", "--synthetic", "34", "--num-classes", "11", "--resume", "checkpoint", "-e", NULL};
    if (path[0])
        return;
    bool help;
    must(command_line_read(&options_line, wanted, 8, words, &help) == SHARD_OK && options_check(wanted) == SHARD_OK);
    must(mkdtemp(directory) != NULL && atexit(remove_all) == 0);
    snprintf(path, sizeof path, "%s/step-000007", directory);
    must(mkdir(path, 0700) == 0);
    snprintf(path, sizeof path, "%s/step-000007/checkpoint.safetensors", directory);
}

static void write_checkpoint(const shard_metadata *metadata)
{
    int64_t bytes;
    char *header = shard_safetensors_format(NULL, 0, metadata, &bytes);
    FILE *file = fopen(path, "wb");
    must(header && file && fwrite(header, 1, (size_t)bytes, file) == (size_t)bytes && fclose(file) == 0);
    free(header);
}

/* Makes it if a folder can have that name; its path, or "". */
static void make_folder(char made[400], const char *name)
{
    made[0] = '\0';
    if (strchr(name, '/') || strlen(name) > 250 || strcmp(name, "step-000007") == 0)
        return;
    snprintf(made, 400, "%s/%s", directory, name);
    if (!*name || mkdir(made, 0700) != 0)
        made[0] = '\0';
}

static void resume(options *wanted, const char *from)
{
    trainer run = {.options = wanted, .base.options = &wanted->training, .data.num_classes = wanted->num_classes};
    wanted->training.resume = from;
    must(trainer_describe(&run) == SHARD_OK);
    must(training_run_resume(&run.base) != SHARD_OK && !run.base.resumed && run.base.at.step == 0); /* there is no model */
    must(!strpbrk(shard_last_error(), "\n\033"));
    shard_clear_error();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static options wanted;
    char folders[FOLDERS][400], found[400], *copy = malloc(size + 1), *rest = copy;
    int count = 0;
    int64_t step;
    shard_metadata *metadata = shard_metadata_create();
    start(&wanted);
    memcpy(copy, data, size);
    copy[size] = '\0';
    for (char *line; (line = strsep(&rest, "\n"));) {
        char *value = line;
        const char *name = strsep(&value, "=");
        if (*line == '/' && count < FOLDERS)
            make_folder(folders[count++], line + 1);
        else if (value && strncmp(name, "crc64.", 6) != 0 && /* checksums that are wrong make the checkpoint a damaged one */
                 shard_metadata_set(metadata, name, value) != SHARD_OK)
            shard_clear_error();
    }
    write_checkpoint(metadata);
    must(shard_latest_checkpoint(directory, INT64_MAX, &step, found, sizeof found) == SHARD_OK);
    must(step == 7 && strcmp(found, path) == 0);
    resume(&wanted, path);
    for (int i = 0; i < count; i++)
        if (folders[i][0])
            must(rmdir(folders[i]) == 0);
    shard_metadata_destroy(metadata);
    free(copy);
    return 0;
}
