"""Compiles and runs what stands in docs/*.md, in a folder of its own for each document:

    ```c        with a main: a program, saved under the name in its first line, "/* name.c: ..."
    ```c        without: a fragment, whose lines are lines of a program of the document, of examples/ or of projects/templates
    ```console  commands after "$ ", which run with cc, pkg-config, shardrun, shard-checkpoint and
                shard-search of the build and shard-plan, and their output;
                a line "..." stands for any lines
    ```text     diagrams

The calls in docs/pytorch.md compile. In README.md, CONTRIBUTING.md and the README.md of each project ```console blocks are run,
too. In all of these every name that begins with shard_ or SHARD_ has to be in the sources. In these and in the README.md of
examples/ and tests/ every relative link has to lead to a file, and to a title of it.

Usage: check_docs.py SOURCE_ROOT BUILD_ROOT CC [ARGUMENT...]
"""
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

FENCE = re.compile(r"^```(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAME = re.compile(r"\b(?:shard|SHARD)_\w*[A-Za-z0-9]\b(?!\*)")
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
TITLE = re.compile(r"^#+ (.*)$", re.MULTILINE)
CALL = re.compile(r"`((?:\w+ = )?(?:shard|SHARD)_\w+\([^`\n]*)`")
# The variables of these calls.
VARIABLES = """
    shard_tensor *a, *b, *c, *w, *x, *y, *p, *s, *v, *q, *k, *bias, *loss, *index, *indices, *logits, *target, *cosines, *pairs,
        *weight, *gradient, *parameter;
    shard_tensors *list, *parameters, *state, *like; shard_module_type module_type;
    shard_module *m, *model, *backbone, *head, *embedding;
    shard_optimizer *optimizer, *optimizers[2];
    shard_group *group, *replicas; shard_group_sampler *sampler;
    shard_mesh *mesh; shard_device *device; shard_event *event; shard_grad_scaler *scaler; shard_ema *ema;
    shard_async_save *save; shard_data_parallel *data_parallel; DLManagedTensorVersioned *managed;
    shard_schedule schedule; shard_custom_op_type type; shard_init_options options; shard_shape shape; shard_dtype dtype;
    void *data, *stream, *context; const char *path; size_t bytes; bool done;
    int d, dim, i, part, parts, color, count, size, ranks[2];
    int64_t n, in, out, seed, step, epoch, start, length, classes, features, labels, samples, local_batch;"""
SECONDS = 60 * int(os.environ.get("CK_TIMEOUT_MULTIPLIER", "1"))


def lines_of(text):
    return [line.strip() for line in text.splitlines() if line.strip()]


def prepare(folder, root, build, compiler):
    """The environment of a reader who has installed the library."""
    programs = folder / ".bin"
    programs.mkdir()
    path = shlex.quote(os.environ["PATH"])  # without this cc, which ccache would find again
    (programs / "cc").write_text(f'#!/bin/sh\nPATH={path} exec {shlex.join(compiler)} -Wall -Wextra -Werror "$@"\n')
    (programs / "cc").chmod(0o755)
    for tool in ("shardrun", "shard-checkpoint", "shard-search"):
        (programs / tool).symlink_to(build / "tools" / tool)
    (programs / "shard-plan").symlink_to(root / "tools/shard-plan")
    return {**os.environ, "OMP_NUM_THREADS": "1", "PATH": f"{programs}:{os.environ['PATH']}", "LC_ALL": "C",
            "PKG_CONFIG_PATH": str(build / "meson-uninstalled"), "LD_LIBRARY_PATH": str(build / "libshard")}


def commands_of(block):
    """(command, the output that follows it)."""
    found = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif found and found[-1][0].endswith("\\"):
            found[-1] = (found[-1][0] + "\n" + line, [])
        elif found:
            found[-1][1].append(line)
        else:
            raise ValueError(f"output before the first command: {line}")
    return found


def matches(wanted, got):
    pattern = "".join(r"(?:.*\n)*" if line == "..." else re.escape(line) + r"\n" for line in wanted)
    return re.fullmatch(pattern, got) is not None


def run_console(block, folder, environment):
    for command, wanted in commands_of(block):
        done = subprocess.run(["sh", "-c", command], cwd=folder, env=environment, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False, timeout=SECONDS)
        if not matches(wanted, done.stdout):
            yield f"$ {command}\nprinted\n{done.stdout}instead of\n" + "\n".join(wanted)
        elif done.returncode and " diff " not in command:
            yield f"$ {command}\nended with {done.returncode}"


def check_blocks(text, folder, environment, known_lines):
    blocks = FENCE.findall(text)
    if text.count("\n```") + text.startswith("```") != 2 * len(blocks):
        yield "a block that is not closed, or is indented"
    programs = [block for kind, block in blocks if kind == "c" and "int main(" in block]
    known_lines = known_lines.union(*(lines_of(block) for block in programs))
    ran = ""
    for kind, block in blocks:
        if kind == "c" and block in programs:
            name = re.match(r"/\* (\w+\.c)\b", block)
            if not name:
                yield f"a program whose first line is not its name: {block.splitlines()[0]}"
                continue
            (folder / name.group(1)).write_text(block)
        elif kind == "c":
            yield from (f"a fragment's line that no program has: {line}" for line in lines_of(block) if line not in known_lines)
        elif kind == "console":
            yield from run_console(block, folder, environment)
            ran += block
        elif kind != "text":
            yield f"a block of kind \"{kind}\", which is neither compiled nor run"
    for path in folder.glob("*.c"):
        if path.stem not in re.findall(r"\./(\w+)", ran):
            yield f"{path.name} is not run"


def check_calls(text, root, compiler):
    calls = [call for call in CALL.findall(text) if "..." not in call]
    lines = ["#include <shard/shard.h>", "#include <shard/dlpack.h>", "#include <stdio.h>", "void calls(int argc, char **argv) {"]
    program = "\n".join([*lines, VARIABLES.replace("\n", " "), *(f"{{ {call}; }}" for call in calls), "}"])
    done = subprocess.run([*compiler, "-Werror=incompatible-pointer-types", "-Werror=int-conversion", "-fsyntax-only",
                           f"-I{root / 'include'}", "-xc", "-"], input=program, capture_output=True, text=True, check=False)
    for line, text_of_error in re.findall(r"^<stdin>:(\d+):\d+: error: (.*)$", done.stderr, re.MULTILINE):
        yield f"{calls[int(line) - len(lines) - 2]}: {text_of_error}"
    if len(calls) < 100 or done.returncode != 0 and "error: " not in done.stderr:
        yield f"{len(calls)} calls: {done.stderr}"


def check_names(text, known):
    return (f"the name {name} is not in the sources" for name in sorted(set(NAME.findall(text)) - known))


def anchors(document):
    """Those that GitHub makes of a document's titles."""
    text = FENCE.sub("", document.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in TITLE.findall(text)}


def check_links(text, document):
    for target, anchor in LINK.findall(FENCE.sub("", text)):
        if "://" in target:
            continue
        path = document.parent / target if target else document
        if not path.exists():
            yield f"a link to {target}, which is not there"
        elif anchor and path.suffix == ".md" and anchor not in anchors(path):
            yield f"a link to {target}#{anchor}, a title that is not there"


def check_document(document, root, build, compiler, known_lines, known_names):
    text = document.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        environment = prepare(folder, root, build, compiler)
        if document.parent.name == "docs":
            yield from check_blocks(text, folder, environment, known_lines)
            yield from check_calls(text, root, compiler) if document.name == "pytorch.md" else ()
        else:
            for block in (block for kind, block in FENCE.findall(text) if kind == "console"):
                yield from run_console(block, folder, environment)
    if document.parent.name not in ("examples", "tests"):
        yield from check_names(text, known_names)
    yield from check_links(text, document)


def main():
    root, build, compiler = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3:]
    shown = [*root.glob("examples/*.c"), *root.glob("projects/templates/*.c")]
    known_lines = {line for path in shown for line in lines_of(path.read_text(encoding="utf-8"))}
    known_names = {word for folder in ("include", "libshard", "projects", "tests", "tools") for path in (root / folder).rglob("*")
                   if path.is_file() and (path.suffix in (".h", ".c", ".cu", ".cuh", ".py") or folder == "tools" and not path.suffix)
                   for word in NAME.findall(path.read_text(encoding="utf-8"))}
    documents = sorted([*root.glob("docs/*.md"), *root.glob("projects/*/README.md"),
                        *(root / name for name in ("README.md", "CONTRIBUTING.md", "examples/README.md", "tests/README.md"))])
    problems = [f"{document.relative_to(root)}: {problem}" for document in documents
                for problem in check_document(document, root, build, compiler, known_lines, known_names)]
    print("\n".join(problems) if problems else f"{len(documents)} documents are as they say")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
