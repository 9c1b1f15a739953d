#include "options.h"

#include "command_line.h"

#include <stddef.h>
#include <stdio.h>

static const command_choice metrics[] = {{"ip", METRIC_IP}, {"cosine", METRIC_COSINE}, {NULL, 0}};

static const settings defaults = {.metric = METRIC_IP, .batch = 256};

#define AT(field) .offset = offsetof(settings, field)
#define TENSOR                                                                                                                   \
    {                                                                                                                            \
        COMMAND_TEXT, "tensor", "the tensor's name; without it the only floating tensor of two dimensions", "NAME", AT(tensor)   \
    }
#define SKIP_CHECKSUMS                                                                                                           \
    {                                                                                                                            \
        COMMAND_FLAG, "skip-checksums", "do not compare the checkpoint with its checksums", AT(skip_checksums)                   \
    }
#define HELP                                                                                                                     \
    {                                                                                                                            \
        COMMAND_HELP, "help", "print this text", .letter = 'h', AT(help)                                                         \
    }

static const command_option search_options[] = {
    {COMMAND_HEADING, "Table", NULL},
    TENSOR,
    {COMMAND_CHOICE, "metric",
     "ip: the inner product of query and row; cosine: of both divided by their norms. A row or a query of zeros has cosine 0 to "
     "all",
     "METRIC", AT(metric), .choices = metrics},
    {COMMAND_TEXT, "names", "names of the rows, one a line, in UTF-8", "FILE", AT(names)},
    {COMMAND_FLAG, "keep-dtype",
     "keep a 16-bit tensor in 16 bits, in half the memory; queries, and with cosine the normalized rows, are rounded to it. "
     "Without it the tensor is converted to float32, and results are those of its exact values",
     AT(keep_dtype)},
    SKIP_CHECKSUMS,
    {COMMAND_TEXT, "device", "cpu; cuda, this rank's GPU of its machine; cuda:N. Without it what SHARD_DEVICE says, else cpu",
     "DEVICE", AT(device), .same = COMMAND_SAME_NOT},

    {COMMAND_HEADING, "Queries", NULL},
    {COMMAND_TEXT, "queries", "JSON lines or a .npy file; without it, or with -, standard input", "FILE|-", AT(queries)},
    {COMMAND_WHOLE, "k", "nearest rows of a query; 0: 10, or all rows of a smaller tensor", "N", .letter = 'k', AT(k),
     .most = COMMAND_MOST_WHOLE},
    {COMMAND_WHOLE, "batch-size", "queries that are searched together at most", "N", .letter = 'b', AT(batch), .least = 1,
     .most = 65536},
    {COMMAND_TEXT, "output", "write the answers to FILE, whole or not at all; without it to standard output", "FILE",
     .letter = 'o', AT(output)},
    HELP,
};

static const command_option export_options[] = {
    {COMMAND_HEADING, "Options of export", NULL},
    TENSOR,
    {COMMAND_TEXT, "npy", "write a .npy file of NumPy: float64 of a float64 tensor, else float32", "FILE", AT(npy)},
    {COMMAND_TEXT, "faiss", "write an IndexFlatIP of faiss, float32, for faiss.read_index", "FILE", AT(faiss)},
    {COMMAND_FLAG, "cosine", "divide each row by its norm; rows of zeros stay", AT(cosine)},
    SKIP_CHECKSUMS,
    HELP,
};

static const command_line search_line = {
    .options = search_options,
    .count = sizeof search_options / sizeof *search_options,
    .defaults = &defaults,
    .bytes = sizeof defaults,
    .operand = "CHECKPOINT",
    .operand_offset = offsetof(settings, checkpoint),
    .usage = "Usage: shard-search CHECKPOINT [options]\n"
             "  or:  shardrun -n 4 shard-search CHECKPOINT [options]\n"
             "  or:  shard-search export CHECKPOINT [options]\n\n"
             "Finds the rows of a checkpoint's tensor (the classes of a classifier, the vocabulary of an embedding) that\n"
             "are nearest to queries, exactly, on one rank or on all that shardrun, mpirun or srun start: each rank has\n"
             "a range of the rows. export writes the tensor to files of NumPy and faiss. Defaults are in parentheses.\n",
    .closing =
        "\nA line of JSON is a query: 17, the row of that index, from 0 on; \"cat\", the row of that name; [0.5, -1, ...], a\n"
        "vector. A .npy file has vectors [queries, width] of float16, float32 or float64, or row indices [queries] of int32\n"
        "or int64. The answer to a query is a line of JSON, largest score first, of equal scores the lower row first:\n"
        "    {\"query\":17,\"rows\":[17,3],\"names\":[\"cat\",\"lynx\"],\"scores\":[1.0,0.75]}\n"
        "\"query\" is the row, the name, or for a vector {\"vector\":N}, N its number among the queries from 0 on. There are\n"
        "\"names\" with --names. A score that overflows is null. Queries of a file that are malformed are an error, and\n"
        "those of standard input are answered by {\"line\":3,\"error\":\"...\"}. Empty lines are skipped. Lines of standard\n"
        "input are answered as they come, those that have come by then together.\n",
};

static const command_line export_line = {
    .options = export_options,
    .count = sizeof export_options / sizeof *export_options,
    .defaults = &defaults,
    .bytes = sizeof defaults,
    .operand = "CHECKPOINT",
    .operand_offset = offsetof(settings, checkpoint),
    .usage = "",
    .closing = "\nThe tensor is exported in blocks of rows, by one rank, to a file that is written whole or not at all.\n",
};

shard_status options_read(settings *o, bool exports, int argc, char **argv)
{
    shard_status status = command_line_read(exports ? &export_line : &search_line, o, argc, argv, &o->help);
    if (status != SHARD_OK || o->help)
        return status;
    if (!o->checkpoint)
        return shard_error(SHARD_ERROR_ARGUMENT, "give a CHECKPOINT, a safetensors file; see --help");
    if (exports && !o->npy && !o->faiss)
        return shard_error(SHARD_ERROR_ARGUMENT, "export: give --npy FILE, --faiss FILE, or both");
    return SHARD_OK;
}

shard_status options_check_identical(const settings *o, bool exports)
{
    return command_line_check_identical(exports ? &export_line : &search_line, o);
}

void options_print_help(void)
{
    if (command_line_print_help(&search_line, stdout) == SHARD_OK)
        command_line_print_help(&export_line, stdout);
}
