"""Runs the programs under examples/ on one and two ranks (meshes also on four and eight) and compares what they print
with the lines below "Prints:" in the comment of each.

Usage: check_examples.py SHARDRUN SOURCE_FOLDER PROGRAM...
"""
import pathlib
import re
import subprocess
import sys
import tempfile

LONGEST = 80  # lines of an example
RANKS = {"groups": (1, 2, 4), "mesh": (1, 2, 4), "mesh_axes": (1, 2, 4, 8), "split_batch": (1, 2, 4)}


def expected_output(source):
    comment = source[:source.index("*/")]
    found = re.search(r"Prints:\n((?: \*     .*\n)+)", comment)
    return "".join(line.removeprefix(" *     ") + "\n" for line in found.group(1).splitlines()) if found else None


def check(shardrun, source, program):
    text = source.read_text(encoding="utf-8")
    wanted = expected_output(text)
    if wanted is None:
        return [f"{source.name}: its comment does not say what it prints"]
    problems = [] if text.count("\n") <= LONGEST else [f"{source.name}: more than {LONGEST} lines"]
    for ranks in RANKS.get(source.stem, (1, 2)):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([shardrun, "-n", str(ranks), program], cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode != 0 or done.stdout != wanted or "shardrun: " in done.stderr:
            problems.append(f"{source.name} on {ranks} rank(s): exit code {done.returncode}, printed\n{done.stdout}{done.stderr}"
                            f"instead of\n{wanted}")
    return problems


def main():
    shardrun, folder = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
    programs = {pathlib.Path(path).name.removeprefix("example_"): pathlib.Path(path).resolve() for path in sys.argv[3:]}
    sources = {path.stem: path for path in folder.glob("*.c")}
    problems = [f"examples/meson.build does not have {name}.c" for name in sorted(sources.keys() - programs.keys())]
    readme = (folder / "README.md").read_text(encoding="utf-8")
    problems += [f"examples/README.md does not have {name}.c" for name in sorted(sources) if f"({name}.c)" not in readme]
    for name in sorted(sources.keys() & programs.keys()):
        problems += check(shardrun, sources[name], programs[name])
    print("\n".join(problems) if problems else f"{len(programs)} examples print what they say")
    return 1 if problems or not programs else 0


if __name__ == "__main__":
    sys.exit(main())
