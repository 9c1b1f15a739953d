"""Writes traced_calls.h: a function in place of each public function, which tells tests/support/allocations.c that the
function is entered and left, so that tests know in which functions an allocation has failed.

Usage: traced_calls.py OUTPUT HEADER...

A file that includes the header calls these functions by the names of the public ones. Functions with a variable number of
arguments are left as they are.
"""
import pathlib
import sys

import null_calls


def write_function(text, number):
    function = null_calls.Function(text)
    arguments = ", ".join(parameter.name for parameter in function.parameters)
    call = f"{function.name}({arguments})"
    result = "" if function.kind() == "NOTHING" else "__auto_type traced_result = "
    head = text.replace(f"{function.name}(", f"traced_{function.name}(", 1)
    end = [] if function.kind() == "NOTHING" else ["    return traced_result;"]
    return "\n".join([f"static inline {head}", "{", f"    traced_enter({number});", f"    {result}{call};",
                      "    traced_leave();"] + end + ["}"])


def main():
    texts = sum((null_calls.prototypes(header) for header in sorted(sys.argv[2:])), [])
    texts = [text for text in texts if "..." not in text]
    names = [null_calls.Function(text).name for text in texts]
    output = ["/* Made by traced_calls.py. */", "#include <shard/dlpack.h>", "", "void traced_enter(int function);",
              "void traced_leave(void);", f"enum {{ TRACED_FUNCTIONS = {len(names)} }};"]
    output += ["#define TRACED_NAMES " + " ".join(f'"{name}",' for name in names), ""]
    output += [write_function(text, number) for number, text in enumerate(texts)]
    output += [f"#define {name} traced_{name}" for name in names]
    pathlib.Path(sys.argv[1]).write_text("\n".join(output) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
