#include "settings.h"

#include "base/error.h"
#include "base/memory.h"
#include "text.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char settings_help[] =
    "Usage: shard-checkpoint COMMAND FILE ... [OPTION ...]\n"
    "\n"
    "Shows, compares and rewrites checkpoints: safetensors files, of shard_save or of other programs.\n"
    "A FILE of inspect, verify, diff and convert, and a single one of merge, may be an index (.json), which\n"
    "stands for the files in its folder that it names.\n"
    "\n"
    "Commands:\n"
    "  inspect FILE          dtype, shape, bytes and name of each tensor, and the metadata\n"
    "      --values          also minimum, maximum, mean and standard deviation of the finite values, and\n"
    "                        the numbers of NaNs and infinities\n"
    "  verify FILE ...       compare header and data with the file's checksums; a file without checksums is\n"
    "                        reported, and is not an error\n"
    "  diff A B              tensors and metadata that differ: names, shapes, dtypes and values\n"
    "      --tolerance X     values differ if they are further apart than X; without it, if their bits are\n"
    "                        not the same\n"
    "  merge FILE ... -o OUT\n"
    "                        several files into one\n"
    "  split FILE --max-bytes N -o DIR\n"
    "                        into DIR/model-00001-of-00003.safetensors ..., each with at most N bytes\n"
    "                        of tensors (or a single tensor), and DIR/model.safetensors.index.json, as\n"
    "                        transformers of Hugging Face loads them; N may end with KB, MB, GB, KiB,\n"
    "                        MiB or GiB\n"
    "  convert FILE -o OUT   with other names and dtypes. The options apply in this order; the first three\n"
    "                        may be given several times, and each must apply to a tensor:\n"
    "      --keep PREFIX     only tensors whose names begin with PREFIX\n"
    "      --drop PREFIX     without tensors whose names begin with PREFIX\n"
    "      --rename OLD=NEW  another name; OLD may be the beginning of names that ends with a point\n"
    "      --prefix-remove PREFIX\n"
    "                        remove PREFIX from the names that begin with it\n"
    "      --prefix-add PREFIX\n"
    "                        add PREFIX to all names\n"
    "      --dtype DTYPE     cast floating tensors to bfloat16, float16, float32 or float64\n"
    "      --allow-overflow  write infinity for values that --dtype cannot hold; else they are an error\n"
    "  join FILE_OF_RANK_0 FILE_OF_RANK_1 ... -o OUT\n"
    "                        files of ranks that have saved their local shards under the same names,\n"
    "                        into one file of whole tensors. A tensor with the same shape and bits in\n"
    "                        all files is taken once, others are concatenated along dimension 0\n"
    "      --dim NAME=D      concatenate along dimension D, even tensors that are the same in all files;\n"
    "                        NAME may be the beginning of names that ends with a point; may be repeated\n"
    "\n"
    "Options:\n"
    "  -o, --output PATH     the file or folder to write; never one of the inputs\n"
    "      --drop-metadata   of merge, convert and join: write no metadata but the checksums. Without\n"
    "                        it, the inputs' metadata must not contradict each other\n"
    "      --skip-checksums  do not compare the inputs with their checksums\n"
    "  -h, --help            this text\n"
    "\n"
    "Tensors are read and written in blocks: the program needs less than 64 MiB of memory and the\n"
    "headers of the files, however large the tensors are. A file is written under a temporary name,\n"
    "synchronized and renamed, and has checksums, as that of shard_save. Data that is read is compared\n"
    "with the checksums of its file. Files, indexes too, may be of any origin.\n"
    "\n"
    "Exit codes: 0; 1, files that differ, or a file that is damaged or malformed; 2, wrong usage;\n"
    "3, other errors.\n";

_Noreturn static void SHARD_PRINTF(1, 2) fail_usage(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("shard-checkpoint: ", stderr);
    vfprintf(stderr, format, arguments);
    fputs("; see shard-checkpoint --help\n", stderr);
    va_end(arguments);
    exit(EXIT_USAGE);
}

void settings_print_help(void)
{
    if (fputs(settings_help, stdout) != EOF && fflush(stdout) == 0)
        exit(EXIT_SUCCESS);
    perror("shard-checkpoint: cannot write the help");
    exit(EXIT_OTHER);
}

/* ---- options of commands ---- */

enum { VALUES = 256, TOLERANCE, MAX_BYTES, DTYPE, RENAME, PREFIX_REMOVE, PREFIX_ADD, DROP, KEEP, DROP_METADATA, DIM, SKIP_CHECKSUMS,
       ALLOW_OVERFLOW };

static const struct option all_options[] = {
    {"output", required_argument, NULL, 'o'},
    {"help", no_argument, NULL, 'h'},
    {"values", no_argument, NULL, VALUES},
    {"tolerance", required_argument, NULL, TOLERANCE},
    {"max-bytes", required_argument, NULL, MAX_BYTES},
    {"dtype", required_argument, NULL, DTYPE},
    {"rename", required_argument, NULL, RENAME},
    {"prefix-remove", required_argument, NULL, PREFIX_REMOVE},
    {"prefix-add", required_argument, NULL, PREFIX_ADD},
    {"drop", required_argument, NULL, DROP},
    {"keep", required_argument, NULL, KEEP},
    {"drop-metadata", no_argument, NULL, DROP_METADATA},
    {"dim", required_argument, NULL, DIM},
    {"skip-checksums", no_argument, NULL, SKIP_CHECKSUMS},
    {"allow-overflow", no_argument, NULL, ALLOW_OVERFLOW},
    {0},
};

static const struct command {
    const char *name;
    int least, most; /* files */
    bool writes;
    int options[10];
} commands[] = {
    {"inspect", 1, 1, false, {VALUES, SKIP_CHECKSUMS}},
    {"verify", 1, -1, false, {0}},
    {"diff", 2, 2, false, {TOLERANCE, SKIP_CHECKSUMS}},
    {"merge", 1, -1, true, {DROP_METADATA, SKIP_CHECKSUMS}},
    {"split", 1, 1, true, {MAX_BYTES, SKIP_CHECKSUMS}},
    {"convert", 1, 1, true, {DTYPE, ALLOW_OVERFLOW, RENAME, PREFIX_REMOVE, PREFIX_ADD, DROP, KEEP, DROP_METADATA, SKIP_CHECKSUMS}},
    {"join", 2, -1, true, {DIM, DROP_METADATA, SKIP_CHECKSUMS}},
};

static const struct command *find_command(const char *name)
{
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    fail_usage("there is no command %s", shown(name));
}

static bool takes(const struct command *command, int option)
{
    if (option == 'o')
        return command->writes;
    for (int i = 0; command->options[i]; i++)
        if (command->options[i] == option)
            return true;
    return false;
}

/* ---- values ---- */

static int64_t read_bytes(const char *text)
{
    static const struct {
        const char *name;
        int64_t factor;
    } units[] = {{"", 1},          {"KB", 1000},     {"MB", 1000000}, {"GB", 1000000000},
                 {"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}};
    char *end;
    errno = 0;
    int64_t number = strtoll(text, &end, 10), bytes;
    for (size_t i = 0; i < sizeof units / sizeof *units && end > text && !errno; i++)
        if (strcmp(end, units[i].name) == 0 && number > 0 && shard_multiply(number, units[i].factor, &bytes))
            return bytes;
    fail_usage("--max-bytes %s: not a number of bytes, as 5000000000 or 5GB", shown(text));
}

static double read_tolerance(const char *text)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !(value >= 0) || !isfinite(value))
        fail_usage("--tolerance %s: not a number from 0", shown(text));
    return value;
}

static shard_dtype read_dtype(const char *text)
{
    static const shard_dtype dtypes[] = {SHARD_BFLOAT16, SHARD_FLOAT16, SHARD_FLOAT32, SHARD_FLOAT64};
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (strcmp(text, shard_dtype_name(dtypes[i])) == 0)
            return dtypes[i];
    fail_usage("--dtype %s: not bfloat16, float16, float32 or float64", shown(text));
}

static void add(texts *list, const char *option, const char *text, bool pair, int64_t most)
{
    const char *equal = strrchr(text, '=');
    if (pair && (!equal || equal == text))
        fail_usage("%s %s: not two texts with = between them", option, shown(text));
    if (list->count == most)
        fail_usage("%s is given more than once", option);
    if (shard_grow(&list->at, &list->capacity, list->count + 1, sizeof *list->at) != SHARD_OK)
        exit(EXIT_OTHER);
    list->at[list->count++] = text;
}

/* The last = of --dim NAME=D stands before the number; a name may have others. */
static void add_dim(texts *list, const char *text)
{
    const char *number = strrchr(text, '=');
    add(list, "--dim", text, true, -1);
    if (strlen(number) != 2 || number[1] < '0' || number[1] > '9' || number == text)
        fail_usage("--dim %s: not a name, = and a dimension from 0", shown(text));
}

static void take(settings *s, int option)
{
    switch (option) {
    case 'o':
        s->output = optarg;
        break;
    case VALUES:
        s->values = true;
        break;
    case TOLERANCE:
        s->tolerance = read_tolerance(optarg);
        s->has_tolerance = true;
        break;
    case MAX_BYTES:
        s->max_bytes = read_bytes(optarg);
        break;
    case DTYPE:
        s->dtype = read_dtype(optarg);
        s->casts = true;
        break;
    case RENAME:
        add(&s->rename, "--rename", optarg, true, -1);
        break;
    case PREFIX_REMOVE:
        add(&s->prefix_remove, "--prefix-remove", optarg, false, 1);
        break;
    case PREFIX_ADD:
        add(&s->prefix_add, "--prefix-add", optarg, false, 1);
        break;
    case DROP:
        add(&s->drop, "--drop", optarg, false, -1);
        break;
    case KEEP:
        add(&s->keep, "--keep", optarg, false, -1);
        break;
    case DROP_METADATA:
        s->drop_metadata = true;
        break;
    case ALLOW_OVERFLOW:
        s->allow_overflow = true;
        break;
    case DIM:
        add_dim(&s->dim, optarg);
        break;
    default:
        s->skip_checksums = true;
        break;
    }
}

static const char *option_name(int option)
{
    for (const struct option *at = all_options; at->name; at++)
        if (at->val == option)
            return at->name;
    return "";
}

void settings_read(settings *s, const char *name, int count, char **arguments)
{
    const struct command *command = find_command(name);
    int option;
    *s = (settings){0};
    opterr = 0;
    while ((option = getopt_long(count, arguments, "o:h", all_options, NULL)) != -1) {
        if (option == 'h')
            settings_print_help();
        if (option == '?')
            fail_usage("%s: not an option, or one without its value", shown(arguments[optind - 1]));
        if (!takes(command, option))
            fail_usage("%s has no option --%s", name, option_name(option));
        take(s, option);
    }
    s->files = arguments + optind;
    s->file_count = count - optind;
    if (s->file_count < command->least || (command->most >= 0 && s->file_count > command->most))
        fail_usage("%s takes %s%d file%s, and %d %s given", name, command->most < 0 ? "at least " : "", command->least,
                   command->least == 1 ? "" : "s", s->file_count, s->file_count == 1 ? "is" : "are");
    if (command->writes && (!s->output || !*s->output))
        fail_usage("%s: where to? (-o %s)", name, takes(command, MAX_BYTES) ? "DIR" : "OUT");
    if (takes(command, MAX_BYTES) && !s->max_bytes)
        fail_usage("split: of which size? (--max-bytes N)");
}

void settings_free(settings *s)
{
    texts *lists[] = {&s->prefix_remove, &s->prefix_add, &s->rename, &s->drop, &s->keep, &s->dim};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        free(lists[i]->at);
        free(lists[i]->used);
    }
}

/* ---- which value applies to a name ---- */

static bool count_as_used(texts *list, int64_t index)
{
    if (!list->used)
        list->used = shard_calloc((size_t)list->count, sizeof *list->used);
    if (list->used)
        list->used[index] = true;
    return list->used != NULL;
}

int64_t settings_find(texts *list, const char *name, size_t *bytes)
{
    size_t length = strlen(name);
    int64_t found = -1;
    *bytes = 0;
    for (int64_t i = 0; i < list->count; i++) {
        const char *equal = strrchr(list->at[i], '=');
        size_t mine = (size_t)(equal - list->at[i]);
        bool begins = mine <= length && strncmp(list->at[i], name, mine) == 0;
        if (begins && (mine == length || equal[-1] == '.') && mine > *bytes) {
            found = i;
            *bytes = mine;
        }
    }
    return found >= 0 && count_as_used(list, found) ? found : -1;
}

bool settings_has_prefix(texts *list, const char *name)
{
    bool found = false;
    for (int64_t i = 0; i < list->count; i++)
        if (strncmp(list->at[i], name, strlen(list->at[i])) == 0)
            found |= count_as_used(list, i);
    return found;
}

shard_status settings_check_used(const texts *list, const char *option)
{
    for (int64_t i = 0; i < list->count; i++)
        if (!list->used || !list->used[i])
            return shard_error(SHARD_ERROR_ARGUMENT, "%s %s: it applies to no tensor", option, list->at[i]);
    return SHARD_OK;
}
