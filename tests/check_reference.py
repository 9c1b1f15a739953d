"""Makes the API reference and fails if Doxygen warns, or if a function, or a macro with arguments, of a header is
not in it. Skipped (77) where there is no Doxygen.

Usage: check_reference.py SOURCE_ROOT DOXYFILE FOLDER [DOXYGEN]
"""
import pathlib
import re
import subprocess
import sys

def main():
    if len(sys.argv) < 5:
        print("skipped: doxygen is not installed")
        return 77
    root, doxyfile, folder, doxygen = pathlib.Path(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3]), sys.argv[4]
    done = subprocess.run([doxygen, doxyfile], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    problems = [line for line in done.stdout.splitlines() if line.strip()]
    if done.returncode != 0 and not problems:
        problems = [f"doxygen: exit code {done.returncode}"]
    headers = "".join(path.read_text(encoding="utf-8") for path in (root / "include").rglob("*.h"))
    wanted = set(re.findall(r"SHARD_API\b[^;(]*?\b(shard_\w+)\(", headers))
    wanted |= set(re.findall(r"#define ((?:shard|SHARD)_\w+)\(", headers)) - set(re.findall(r"SHARD_\w*(?:_IN|_)\b", headers))
    wanted -= {"SHARD_WITH", "SHARD_JOIN", "SHARD_ARGUMENTS", "SHARD_OPTIONS_OF", "SHARD_PRINTF", "SHARD_GIVEN",
               "SHARD_GIVEN_STATUS", "SHARD_OPTIONS", "SHARD_FIELDS", "SHARD_SIZE_BY_NAME", "SHARD_PARAMETERS",
               "SHARD_OF_PARAMETERS"}
    pages = "".join(path.read_text(encoding="utf-8") for path in (folder / "html").glob("globals*.html"))
    found = set(re.findall(r"<li>(\w+)", pages))
    problems += [f"{name} is not in the reference" for name in sorted(wanted - found)]
    print("\n".join(problems) if problems else f"{len(wanted)} functions and macros are in the reference")
    return 1 if problems or len(wanted) < 100 else 0


if __name__ == "__main__":
    sys.exit(main())
