"""Writes null_calls.c: a call of every public function with NULL for each pointer argument in
turn, and for all of them, and what is to come of it. tests/test_null_arguments.c makes them.

Usage: null_calls.py OUTPUT HEADER...

The prototypes are those marked SHARD_API. What a call needs beside the NULL is made by the
tables below, by type; a type or a prototype that they do not know stops the build, so that no
function is left out in silence. The rule, which include/shard/base.h states: a maker gives NULL
and a doer an error that names the argument, unless the thread has an error, which stays as it
is; a function that returns a number or a struct gives 0, or an error; others do nothing. LEGAL
lists each argument that may be NULL, or whose NULL has a value of its own, with the reason.
"""
import pathlib
import re
import sys

# An argument by type, made once a process and kept: what is reachable is no leak.
MADE = {
    "shard_tensor *": "shard_ones(SHARD_SHAPE(2, 2))",
    "shard_tensors *": 'made_list(shard_ones(SHARD_SHAPE(2, 2)))',
    "shard_module *": "shard_nn_linear(2, 2)",
    "shard_optimizer *": "made_optimizer()",
    "shard_optimizer *const *": "made_optimizers()",
    "shard_ema *": "shard_ema_create(made_optimizer())",
    "shard_grad_scaler *": "shard_grad_scaler_create()",
    "shard_data_parallel *": "shard_data_parallel_create(made_list(shard_ones(SHARD_SHAPE(2), .requires_grad = true)))",
    "shard_group *": "made_world()",
    "shard_mesh *": "(made_world(), shard_mesh_create())",
    "shard_group_sampler *": "shard_group_sampler_create(10)",
    "shard_metadata *": "made_metadata()",
    "shard_device *": 'shard_device_open("cpu")',
    "shard_event *": 'shard_event_create(shard_device_open("cpu"))',
    "shard_module_type *": "&made_type",
    "shard_custom_op_type *": "&made_op_type",
    "shard_custom_op *": "made_op()",
    "shard_tensor *const *": "made_tensors()",
    "shard_tensor **": "&made_tensor",
    "shard_schedule *": "&made_schedule",
    "shard_scope *": "&made_scope",
    "shard_module **": "&made_module",
    "shard_metadata **": "&made_metadata_pointer",
    "char *": '"1"',
    "int *": "made_ints",
    "int64_t *": "made_int64s",
    "double *": "made_doubles",
    "void *": "made_bytes",
    "char ***": "&made_words",
    "FILE *": "made_file()",
    "shard_release_memory *": "made_release",
    "shard_take_rows *": "made_take",
    "shard_head_saved *": "made_saved()",
    "shard_head_saved **": "&made_saved_pointer",
    "shard_log_function *": "made_log",
    "shard_async_save *": "made_async_save()",
    "bool *": "made_bools",
    "DLManagedTensorVersioned *": "made_managed()",
    "DLManagedTensor *": "made_unversioned()",
}
# Arguments that the function takes over, even when it fails: made anew for each call.
TAKEN = {
    ("shard_module_add_child", "child"): "shard_nn_relu()",
    ("shard_module_set_child", "child"): "shard_nn_relu()",
}
# Arguments that must be other than their type's.
MADE_FOR = {
    ("shard_group_set_replicas", "group"): "shard_group_split(made_world(), 0)",
    ("shard_printable", "to"): "made_bytes",
    ("shard_latest_checkpoint", "path"): "made_bytes",
    ("shard_save_checkpoint_async_with", "directory"): '"/nowhere/run"',
    ("shard_save_checkpoint_with", "directory"): '"/nowhere/run"',
    ("shard_add_at_labels", "labels"): "shard_zeros(SHARD_SHAPE(2), .dtype = SHARD_INT64)",
    ("shard_cross_entropy_with", "target"): "shard_zeros(SHARD_SHAPE(2), .dtype = SHARD_INT64)",
    ("shard_margin_logits_with", "labels"): "shard_zeros(SHARD_SHAPE(2), .dtype = SHARD_INT64)",
    ("shard_sample_classes", "labels"): "shard_zeros(SHARD_SHAPE(2), .dtype = SHARD_INT64)",
    ("shard_sample_correction", "labels"): "shard_zeros(SHARD_SHAPE(2), .dtype = SHARD_INT64)",
    ("shard_sample_correction", "sample"): "shard_zeros(SHARD_SHAPE(2), .dtype = SHARD_INT64)",
    ("shard_adaface_margins_with", "mean"): "shard_zeros(SHARD_SCALAR)",
    ("shard_adaface_margins_with", "std"): "shard_zeros(SHARD_SCALAR)",
    ("shard_precision_at_k", "indices"): "shard_zeros(SHARD_SHAPE(2, 2), .dtype = SHARD_INT64)",
    ("shard_precision_at_k", "pairs"): "shard_zeros(SHARD_SHAPE(2, 1), .dtype = SHARD_INT64)",
    ("shard_precision_at_k", "inverse_propensity"): "shard_ones(SHARD_SHAPE(2))",
}
# Values by the parameter's name, else 1; structs and enums are 0.
NUMBERS = ["int", "int64_t", "uint64_t", "size_t", "double", "bool"]
VALUES = {"root": "0", "dim": "0", "dim0": "0", "start": "0", "index": "0", "step": "0", "epoch": "0", "position": "0",
          "member": "0", "bytes": "4 * sizeof(float)", "count": "3"}
SPECIAL = {("shard_from_host_with", "shape"): "SHARD_SHAPE(2, 2)", ("shard_from_host_async_with", "shape"): "SHARD_SHAPE(2, 2)",
           ("shard_as_split", "whole"): "2",
           ("shard_error", "status"): "SHARD_ERROR_ARGUMENT"}

# (function, parameter): why NULL is not an error, or has a value of its own.
SCALER = "a scaler that does nothing (amp.h)"
ALONE = "this rank alone (comm.h)"
DEVICE = "the default device (device.h)"
OPTIONAL = "without one"
UNWANTED = "a result that is not wanted"
LEGAL = {
    ("shard_grad_scaler_scale", "scaler"): SCALER,
    ("shard_grad_scaler_unscale", "scaler"): SCALER,
    ("shard_grad_scaler_step", "scaler"): SCALER,
    ("shard_grad_scaler_update", "scaler"): SCALER,
    ("shard_grad_scaler_set_scale", "scaler"): SCALER,
    ("shard_grad_scaler_get_scale", "scaler"): SCALER,
    ("shard_grad_scaler_overflowed", "scaler"): SCALER,
    ("shard_from_memory", "device"): DEVICE,
    ("shard_from_memory", "release"): "the memory is not released",
    ("shard_from_memory", "context"): OPTIONAL,
    ("shard_set_log_function", "function"): "standard error",
    ("shard_set_log_function", "context"): OPTIONAL,
    ("shard_save_with", "metadata"): OPTIONAL,
    ("shard_save_checkpoint_with", "metadata"): OPTIONAL,
    ("shard_save_async_with", "metadata"): OPTIONAL,
    ("shard_save_checkpoint_async_with", "metadata"): OPTIONAL,
    ("shard_load_with", "metadata"): UNWANTED,
    ("shard_cross_entropy_with", "label_rank"): UNWANTED,
    ("shard_adaface_margins_with", "row_m3"): UNWANTED,
    ("shard_precision_at_k", "inverse_propensity"): OPTIONAL,
    ("shard_inspect", "metadata"): UNWANTED,
    ("shard_inspect_loadable", "metadata"): UNWANTED,
    ("shard_group_size", "group"): ALONE,
    ("shard_group_transport", "group"): ALONE,
    ("shard_group_set_replicas", "replicas"): "no other rank has the same shards",
    ("shard_barrier", "group"): ALONE,
    ("shard_agree", "group"): ALONE,
    ("shard_copy_to_group", "group"): ALONE,
    ("shard_scatter_to_group", "group"): ALONE,
    ("shard_reduce_from_group", "group"): ALONE,
    ("shard_gather_from_group", "group"): ALONE,
    ("shard_all_reduce", "group"): ALONE,
    ("shard_broadcast", "group"): ALONE,
    ("shard_as_split", "group"): ALONE,
    ("shard_nn_parallel_linear_with", "group"): ALONE,
    ("shard_nn_parallel_classifier_with", "group"): ALONE,
    ("shard_convert_parallel_classifier", "group"): ALONE,
    ("shard_convert_parallel_classifier", "pattern"): "every name",
    ("shard_convert_parallel_classifier", "converted"): UNWANTED,
    ("shard_convert_parallel_linear", "group"): ALONE,
    ("shard_device_open", "name"): DEVICE,
    ("shard_device_use_stream", "stream"): "the device's own",
    ("shard_device_name", "device"): "the name is \"none\"",
    ("shard_init", "argc"): OPTIONAL,
    ("shard_init", "argv"): OPTIONAL,
    ("shard_parallel_linear", "bias"): OPTIONAL,
    ("shard_linear", "bias"): OPTIONAL,
    ("shard_linear_binary_cross_entropy_with", "bias"): OPTIONAL,
    ("shard_linear_cross_entropy_with", "bias"): OPTIONAL,
    ("shard_linear_top_k", "bias"): OPTIONAL,
    ("shard_linear_top_k", "indices"): UNWANTED,
    ("shard_linear_cross_entropy_with", "label_rank"): UNWANTED,
    ("shard_linear_cross_entropy_forward_with", "bias"): OPTIONAL,
    ("shard_linear_cross_entropy_forward_with", "saved"): UNWANTED,
    ("shard_linear_cross_entropy_forward_with", "label_rank"): UNWANTED,
    ("shard_linear_binary_cross_entropy_forward_with", "bias"): OPTIONAL,
    ("shard_linear_binary_cross_entropy_forward_with", "saved"): UNWANTED,
    ("shard_head_backward_with", "dx"): UNWANTED,
    ("shard_head_backward_with", "dweight"): UNWANTED,
    ("shard_head_backward_with", "dbias"): UNWANTED,
    ("shard_take_gradient_rows", "context"): OPTIONAL,
    ("shard_conv2d_with", "bias"): OPTIONAL,
    ("shard_nn_batch_norm_relu", "residual"): OPTIONAL,
    ("shard_convert_parallel_linear", "pattern"): "every name",
    ("shard_convert_parallel_linear", "converted"): UNWANTED,
    ("shard_nn_parallel_embedding_with", "group"): ALONE,
    ("shard_convert_parallel_embedding", "pattern"): "every name",
    ("shard_convert_parallel_embedding", "group"): ALONE,
    ("shard_convert_parallel_embedding", "converted"): UNWANTED,
    ("shard_resnet_gather_features", "group"): ALONE,
    ("shard_max_dim", "indices"): UNWANTED,
    ("shard_min_dim", "indices"): UNWANTED,
    ("shard_top_k", "indices"): UNWANTED,
    ("shard_add_at_labels", "values"): "ones",
    ("shard_custom_op_apply_with", "context"): OPTIONAL,
    ("shard_printable", "to"): "\"\"",
    ("shard_printable", "text"): "\"\"",
    ("shard_module_create", "data"): OPTIONAL,
    ("shard_clip_grad_norm_of_with", "norm"): UNWANTED,
    ("shard_clip_grad_norm_with", "norm"): UNWANTED,
}
# Functions for which NULL for all is no error, though for one of them it is.
LEGAL_TOGETHER = {"shard_grad_scaler_unscale": SCALER}


class Parameter:
    def __init__(self, function, text):
        found = re.fullmatch(r"(?:const )?(\w+) ((?:\*(?:const )?)*)(\w+)", text)
        if not found:
            raise SystemExit(f"null_calls.py: {function}: cannot read the parameter \"{text}\"")
        base, stars, self.name = found.groups()
        self.pointer = bool(stars)
        self.type = f"{base} {stars}" if stars else base
        self.options = base if self.pointer and base.endswith("_options") else None

    def value(self, function):
        key = (function, self.name)
        for table in (TAKEN, MADE_FOR):
            if self.pointer and key in table:
                return table[key]
        if self.pointer and self.name == "path":
            return '"/nowhere/1"'
        if self.pointer:
            if self.type not in MADE:
                raise SystemExit(f"null_calls.py: {function}: add \"{self.type}\" to MADE")
            return MADE[self.type]
        if key in SPECIAL:
            return SPECIAL[key]
        return VALUES.get(self.name, "1") if self.type in NUMBERS else f"({self.type}){{0}}"


class Function:
    def __init__(self, text):
        found = re.fullmatch(r"(.*?[ *])(shard_\w+)\((.*?)\)(?: SHARD_PRINTF\(\d+, \d+\))?", text)
        if not found:
            raise SystemExit(f"null_calls.py: cannot read the prototype \"{text}\"")
        self.result, self.name, parameters = (part.strip() for part in found.groups())
        parameters = [] if parameters == "void" else [p.strip() for p in parameters.split(",")]
        self.variadic = bool(parameters) and parameters[-1] == "..."
        self.parameters = [Parameter(self.name, p) for p in (parameters[:-1] if self.variadic else parameters)]

    def kind(self):
        if "*" in self.result:
            return "POINTER"
        if self.result == "void":
            return "NOTHING"
        return "STATUS" if self.result == "shard_status" else "NUMBER"


def is_legal(function, parameter):
    """NULL for options stands for the defaults."""
    return bool(parameter.options) or (function, parameter.name) in LEGAL


def prototypes(header):
    """Each as one line, without SHARD_API."""
    text = re.sub(r"/\*.*?\*/", "", pathlib.Path(header).read_text(encoding="utf-8"), flags=re.DOTALL)
    text = re.sub(r"^\s*#.*(?:\\\n.*)*$", "", text, flags=re.MULTILINE).replace("SHARD_CHECKED ", "")
    found = [" ".join(found.split()) for found in re.findall(r"\bSHARD_API\s+([^;]*);", text)]
    if len(found) != len(re.findall(r"\bSHARD_API\b", text)):
        raise SystemExit(f"{header}: a SHARD_API without a prototype")
    return found


def read(header):
    return [Function(text) for text in prototypes(header)]


def write_call(function, nulls, number):
    """A C function that makes one call; `first` is set where the thread has an error before."""
    lines = [f"static void call_{number}(const char *first, null_result *result)", "{"]
    arguments = []
    for i, parameter in enumerate(function.parameters):
        if parameter in nulls:
            arguments.append(f"({parameter.type})NULL")
        elif parameter.pointer:
            if parameter.options:
                lines += [f"    {parameter.options} argument{i} = {parameter.options.upper()}_INIT;"]
                arguments.append(f"&argument{i}")
                continue
            made = f"({parameter.type}){parameter.value(function.name)}"
            if (function.name, parameter.name) in TAKEN:
                lines += [f"    {parameter.type}argument{i} = {made};"]
            else:
                lines += [f"    static {parameter.type}argument{i};", f"    argument{i} = argument{i} ? argument{i} : {made};"]
            arguments.append(f"argument{i}")
        else:
            arguments.append(parameter.value(function.name))
    lines += ["    begin_call(first, result);"]
    call = f"{function.name}({', '.join(arguments)})"
    kind = function.kind()
    if kind == "NOTHING":
        lines += [f"    {call};"]
    elif kind == "POINTER":
        lines += ["    static const void *kept[2];", f"    result->pointer = kept[first != NULL] = {call};"]
    elif kind == "STATUS":
        lines += [f"    result->status = {call};"]
    else:
        lines += [f"    {function.result} value = {call};", "    result->zero = is_zero(&value, sizeof value);"]
    return "\n".join(lines + ["    end_call(result);", "}"]) + "\n"


def main():
    functions = sum((read(header) for header in sorted(sys.argv[2:])), [])
    known = {(f.name, p.name) for f in functions for p in f.parameters if p.pointer}
    stale = sorted(key for key in LEGAL.keys() | TAKEN.keys() | MADE_FOR.keys() if key not in known)
    stale += sorted(LEGAL_TOGETHER.keys() - {f.name for f in functions})
    if stale or not functions:
        raise SystemExit(f"null_calls.py: the tables name what is not there: {stale}")
    calls, table = [], []
    for function in functions:
        pointers = [p for p in function.parameters if p.pointer]
        for nulls in [[p] for p in pointers] + ([pointers] if len(pointers) > 1 else []):
            legal = (len(nulls) > 1 and function.name in LEGAL_TOGETHER) or all(is_legal(function.name, p) for p in nulls)
            names = ", ".join(p.name for p in nulls)
            table.append(f'    {{"{function.name}", "{names}", {function.kind()}, {str(legal).lower()}, call_{len(calls)}}},')
            calls.append(write_call(function, nulls, len(calls)))
    output = ["/* Made by null_calls.py. */", '#include "null_calls.h"', ""] + calls
    output += ["const null_call null_calls[] = {", *table, "};", f"const int null_call_count = {len(calls)};", ""]
    pathlib.Path(sys.argv[1]).write_text("\n".join(output), encoding="utf-8")


if __name__ == "__main__":
    main()
