/* merge, convert and split: each tensor of the inputs goes into one output. */
#include "base/printable.h"
#include "commands.h"
#include "index.h"
#include "output.h"

#include "base/memory.h"
#include "checkpoint/json_writer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- inputs ---- */

static shard_status add_inputs(source_list *sources, const settings *s)
{
    for (int i = 0; i < s->file_count; i++) {
        if (index_is(s->files[i]) && s->file_count > 1)
            return shard_error(SHARD_ERROR_ARGUMENT, "%s: an index is merged alone", s->files[i]);
        SHARD_TRY(index_or_file_add(sources, s->files[i], s->skip_checksums));
        SHARD_TRY(source_check_output(s->output, s->files[i])); /* also an index */
    }
    return output_check_path(s->output, sources);
}

/* ---- merge ---- */

static shard_status merge(output *out, source_list *sources, const settings *s)
{
    SHARD_TRY(add_inputs(sources, s));
    for (int64_t i = 0; i < sources->count; i++) {
        source *from = &sources->at[i];
        for (int64_t j = 0; j < from->header.count; j++)
            SHARD_TRY(output_add(out, from, &from->header.entries[j], from->header.entries[j].name));
        if (!s->drop_metadata)
            SHARD_TRY(output_add_metadata(out, from));
    }
    SHARD_TRY(output_check_names(out));
    return output_write(out, s->output);
}

shard_status command_merge(settings *s)
{
    source_list sources = {0};
    output out = {0};
    shard_status status = merge(&out, &sources, s);
    output_free(&out);
    sources_free(&sources);
    return status;
}

/* ---- convert ---- */

/* The new name; NULL with *dropped for a tensor that is left out, or with the error set. */
static char *convert_name(settings *s, const char *name, bool *dropped)
{
    size_t bytes;
    bool keeps = settings_has_prefix(&s->keep, name) || s->keep.count == 0, drops = settings_has_prefix(&s->drop, name);
    *dropped = drops || !keeps;
    if (*dropped)
        return NULL;
    int64_t rename = settings_find(&s->rename, name, &bytes);
    char *text = rename < 0 ? shard_strdup(name) : shard_format("%s%s", strrchr(s->rename.at[rename], '=') + 1, name + bytes);
    if (!text)
        return NULL;
    bool removes = settings_has_prefix(&s->prefix_remove, text);
    char *result = shard_format("%s%s", s->prefix_add.count ? s->prefix_add.at[0] : "",
                                text + (removes ? strlen(s->prefix_remove.at[0]) : 0));
    free(text);
    if (result && !*result) {
        free(result);
        shard_error(SHARD_ERROR_ARGUMENT, "%s would have no name; give --rename or --prefix-remove another text",
                    shard_quoted(name));
        return NULL;
    }
    return result;
}

static shard_status add_converted(output *out, source *from, const shard_entry *entry, settings *s)
{
    bool dropped;
    char *name = convert_name(s, entry->name, &dropped);
    if (!name)
        return dropped ? SHARD_OK : shard_last_status();
    shard_status status = output_add(out, from, entry, name);
    free(name);
    SHARD_TRY(status);
    const char *type = shard_entry_type_name(entry);
    if (s->casts && entry->refusal && (type[0] == 'F' || type[0] == 'C'))
        return shard_error(SHARD_ERROR_UNSUPPORTED, "%s: %s has dtype %s, which cannot be cast; leave out --dtype, or --drop it",
                           from->path, shard_quoted(entry->name), type);
    if (s->casts && !entry->refusal && shard_dtype_is_float(entry->dtype)) {
        out->entries[out->count - 1].type = NULL;
        out->entries[out->count - 1].dtype = s->dtype;
    }
    return SHARD_OK;
}

static shard_status convert(output *out, source_list *sources, settings *s)
{
    SHARD_TRY(add_inputs(sources, s));
    for (int64_t i = 0; i < sources->count; i++) {
        source *from = &sources->at[i];
        for (int64_t j = 0; j < from->header.count; j++)
            SHARD_TRY(add_converted(out, from, &from->header.entries[j], s));
        if (!s->drop_metadata)
            SHARD_TRY(output_add_metadata(out, from));
    }
    SHARD_TRY(settings_check_used(&s->keep, "--keep"));
    SHARD_TRY(settings_check_used(&s->drop, "--drop"));
    SHARD_TRY(settings_check_used(&s->rename, "--rename"));
    SHARD_TRY(settings_check_used(&s->prefix_remove, "--prefix-remove"));
    SHARD_TRY(output_check_names(out));
    out->allow_overflow = s->allow_overflow;
    return output_write(out, s->output);
}

shard_status command_convert(settings *s)
{
    source_list sources = {0};
    output out = {0};
    shard_status status = convert(&out, &sources, s);
    output_free(&out);
    sources_free(&sources);
    return status;
}

/* ---- split ---- */

#define INDEX_NAME "model.safetensors.index.json"

static char *file_path(const char *folder, int64_t number, int64_t files)
{
    return shard_format("%s/model-%05" PRId64 "-of-%05" PRId64 ".safetensors", folder, number, files);
}

/* The file of each entry, from 1, in the order of the header; *files is their number. A tensor that is larger than
 * max_bytes is alone. Freed by free(); NULL with the error set. */
static int64_t *assign_files(const shard_safetensors *header, int64_t max_bytes, int64_t *files)
{
    int64_t *file = shard_calloc((size_t)header->count, sizeof *file), used = 0;
    *files = 1;
    for (int64_t i = 0; i < header->count && file; i++) {
        int64_t bytes = header->entries[i].end - header->entries[i].begin;
        if (used > 0 && bytes > max_bytes - used) {
            (*files)++;
            used = 0;
        }
        used += bytes;
        file[i] = *files;
    }
    return file;
}

static shard_status write_file(source_list *sources, const int64_t *file, int64_t number, const char *path)
{
    source *from = &sources->at[0];
    output out = {0};
    shard_status status = SHARD_OK;
    for (int64_t i = 0; i < from->header.count && status == SHARD_OK; i++)
        if (file[i] == number)
            status = output_add(&out, from, &from->header.entries[i], from->header.entries[i].name);
    if (status == SHARD_OK)
        status = output_add_metadata(&out, from);
    /* transformers loads no file with metadata that does not have it. */
    if (status == SHARD_OK && !shard_metadata_get(&out.metadata, "format"))
        status = shard_metadata_set(&out.metadata, "format", "pt");
    if (status == SHARD_OK)
        status = output_write(&out, path);
    output_free(&out);
    return status;
}

static shard_status write_index(const shard_safetensors *header, const int64_t *file, int64_t files, const char *folder)
{
    int64_t bytes = 0;
    json_writer writer = {0};
    json_writer_add(&writer, "{\n  \"metadata\": {\n    \"total_size\": ");
    for (int64_t i = 0; i < header->count; i++)
        bytes += header->entries[i].end - header->entries[i].begin;
    json_writer_integer(&writer, bytes);
    json_writer_add(&writer, "\n  },\n  \"weight_map\": {");
    for (int64_t i = 0; i < header->count && writer.status == SHARD_OK; i++) {
        char *path = file_path(folder, file[i], files);
        json_writer_add(&writer, i ? ",\n    " : "\n    ");
        json_writer_string(&writer, header->entries[i].name);
        json_writer_add(&writer, ": ");
        json_writer_string(&writer, path ? path + strlen(folder) + 1 : "");
        writer.status = path ? writer.status : shard_last_status();
        free(path);
    }
    json_writer_add(&writer, header->count ? "\n  }\n}" : "}\n}");
    char *path = shard_format("%s/" INDEX_NAME, folder);
    shard_status status =
        path && writer.status == SHARD_OK ? shard_new_file_write(path, writer.text, writer.bytes) : shard_last_status();
    free(writer.text);
    free(path);
    return status;
}

/* Frees the path, of a file that shall be new: a split that fails removes what it has written. */
static void check_new(char *path, const source_list *inputs)
{
    struct stat there;
    if (path && output_check_path(path, inputs) == SHARD_OK && lstat(path, &there) == 0)
        shard_error(SHARD_ERROR_IO, "%s is there already; choose another folder, or remove it", path);
    free(path);
}

static shard_status check_folder(const char *folder, const source_list *inputs, int64_t files)
{
    SHARD_TRY(shard_file_make_directory(folder));
    check_new(shard_format("%s/" INDEX_NAME, folder), inputs);
    for (int64_t i = 1; i <= files && shard_last_status() == SHARD_OK; i++)
        check_new(file_path(folder, i, files), inputs);
    return shard_last_status();
}

/* Removes the files that a split that failed has written: without an index they are no checkpoint. */
static void remove_files(const char *folder, int64_t written, int64_t files, bool is_new)
{
    for (int64_t i = written == files ? 0 : 1; i <= written; i++) { /* the index first, which may be there unsynced */
        char *path = i ? file_path(folder, i, files) : shard_format("%s/" INDEX_NAME, folder);
        if (path)
            shard_file_remove(path);
        free(path);
    }
    if (is_new)
        shard_file_remove_directory(folder);
}

static shard_status split(source_list *sources, const settings *s)
{
    SHARD_TRY(index_refuse(s->files[0]));
    SHARD_TRY(sources_add(sources, s->files[0], s->skip_checksums));
    const shard_safetensors *header = &sources->at[0].header;
    struct stat there;
    bool is_new = stat(s->output, &there) != 0;
    int64_t files, written = 0, *file = assign_files(header, s->max_bytes, &files);
    shard_status status = file ? check_folder(s->output, sources, files) : shard_last_status();
    while (status == SHARD_OK && written < files) {
        char *path = file_path(s->output, written + 1, files);
        status = path ? write_file(sources, file, written + 1, path) : shard_last_status();
        free(path);
        written += status == SHARD_OK;
    }
    if (status == SHARD_OK)
        status = write_index(header, file, files, s->output);
    if (status != SHARD_OK)
        remove_files(s->output, written, files, is_new);
    free(file);
    return status;
}

shard_status command_split(settings *s)
{
    source_list sources = {0};
    shard_status status = split(&sources, s);
    sources_free(&sources);
    return status;
}
