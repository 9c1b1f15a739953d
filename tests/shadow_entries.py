"""Writes shadow_entries.c: for every entry of the devices' table (libshard/device/entries.h) a function that
puts the arrays of tests/support/shadow.h in place of their shadows and calls the device's own.

Usage: shadow_entries.py OUTPUT ENTRIES_H

A pointer is replaced if it points into a shadow, whatever its type. The lists whose items hold pointers are
those in LISTS; a type of the table that is in none of the tables below stops the build.
"""
import pathlib
import re
import sys

# What waits for the device brings the shadows up to date: by hand in tests/support/shadow.c.
BY_HAND = ["synchronize"]
# Structs on the host that hold pointers to the device's memory, and whether their number comes before them.
LISTS = {"shard_update": True, "shard_square_sum": True, "shard_trust_options": False, "shard_loss_rows": False}
# Structs without pointers; those in the device's memory are arrays as others.
PLAIN = ["shard_device", "shard_attention_shape", "shard_memory_stats", "shard_expansion", "shard_region", "shard_matmul_shape", "shard_linear_shape",
         "shard_conv_shape",
         "shard_pool_shape", "shard_axis", "shard_truncated_normal", "shard_cross_entropy_shape", "shard_fault",
         "shard_label_digest", "shard_sgd_arguments", "shard_adam_arguments", "shard_rowwise_arguments", "shard_margin", "shard_binary_loss_shape"]
NUMBERS = ["void", "double", "int64_t", "int32_t", "uint64_t", "uint8_t", "int"]


def parameters_of(text):
    """[(type, name)]; the name is "" where the table has none."""
    found = []
    for part in text.split(","):
        declared = re.fullmatch(r"\s*((?:const )?\w+\s*\**)\s*(\w*)\s*", part)
        kind, name = declared.group(1), declared.group(2)
        found.append((" ".join(kind.replace("*", " * ").split()), name))
    return found


def argument(kind, name, place, before):
    """How parameter number `place` is passed on."""
    given = f"a{place}"
    base = kind.replace("const", "").replace("*", "").strip()
    if not kind.endswith("*") or name.endswith("_host"):
        return given
    if base in LISTS:
        return f"shadow_of_{base}({before if LISTS[base] else 1}, {given})"
    if base not in PLAIN + NUMBERS:
        sys.exit(f"shadow_entries.py: {base} is in none of its tables")
    return f"shadow_in({given})" if kind.startswith("const") else f"shadow_inout({given})"


def function_of(result, name, parameters):
    declared, passed = ["shard_device *device"], ["real"]
    if parameters[0][0].startswith("const"):
        declared = ["const shard_device *device"]
    for place, (kind, parameter) in enumerate(parameters[1:], 1):
        declared.append(f"{kind} a{place}")
        passed.append(argument(kind, parameter, place, f"a{place - 1}"))
    call = f"real->ops->{name}({', '.join(passed)})"
    answer = "" if result == "void" else "return "
    return (f"static {result} call_{name}({', '.join(declared)})\n{{\n"
            f"    shard_device *real = shadow_real(device);\n    {answer}{call};\n}}\n")


def main():
    output, header = sys.argv[1:]
    text = re.sub(r"/\*.*?\*/", "", pathlib.Path(header).read_text(), flags=re.S)
    entries = re.findall(r"(?m)^SHARD_\w+_ENTRY\(([^,]*), (\w+), ([^;]*?)\)$", text)
    if len(entries) != len(re.findall(r"(?m)^SHARD_\w+_ENTRY", text)):
        sys.exit("shadow_entries.py: an entry of the table is not understood")
    lines = ["/* Written by tests/shadow_entries.py. */", '#include "support/shadow.h"', ""]
    for result, name, parameters in entries:
        if name not in BY_HAND:
            lines.append(function_of(result.strip(), name, parameters_of(parameters)))
    lines.append("const shard_device_ops shadow_entries = {")
    lines += [f"    .{name} = {'shadow' if name in BY_HAND else 'call'}_{name}," for _, name, _ in entries]
    lines.append("};")
    pathlib.Path(output).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
