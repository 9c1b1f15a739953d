"""The table of what is promised: the cases that the tests of each promise have tried, and their failures, by meson's logs.

Usage: promises.py [--write] [--all] [--table FILE] LOG...

The promises are the rows of the table in FILE, tests/README.md, after the line "<!-- promises -->": the promise, how it is tried,
its tests by meson's names or patterns of them, cases, failures, and tests that were skipped. Prints promise, cases, failures and
skipped tests by the logs; --write also puts the numbers into FILE. A test has tried the sum of its lines "cases: N"; one without
such a line, what count_tests.py counts. The logs of several builds add up. A promise of which no test ran is "not run".

--all: each of these tests must have run. Exits 1 where one was skipped in every build that has it, or where no test has a name of
the table, and prints the names.
"""
import argparse
import fnmatch
import json
import os
import pathlib
import re
import sys

import count_tests

TABLE = pathlib.Path(__file__).resolve().parent.parent / "tests" / "README.md"
BEGIN = "<!-- promises -->"
COLUMNS = ["promise", "how it is tried", "tests", "cases", "failures", "skipped"]
CASES = re.compile(r"^cases: (\d+)", re.MULTILINE)
NOT_RUN = "not run"


def read_rows(text):
    """The cells of each promise's row, and the text before and after the rows."""
    if text.count(BEGIN) != 1:
        sys.exit(f"promises.py: \"{BEGIN}\" is there {text.count(BEGIN)} times, not once")
    before, _, rest = text.partition(BEGIN)
    lines = rest.split("\n")
    end = next(i for i, line in enumerate([*lines, ""]) if i > 0 and not line.startswith("|"))
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:end]]
    if not rows or rows[0] != COLUMNS:
        sys.exit(f"promises.py: no columns {', '.join(COLUMNS)} after \"{BEGIN}\"")
    for row in rows:
        if len(row) != len(COLUMNS):
            sys.exit(f"promises.py: {len(row)} cells instead of {len(COLUMNS)}: {' | '.join(row)}")
    return rows[2:], "\n".join([before + BEGIN, *lines[1:3]]), "\n".join(lines[end:])


def patterns_of(row):
    return re.findall(r"`([^`]+)`", row[2])


def read_tests(paths):
    """(name, cases, failures, skipped) of each test of each build."""
    for path in paths:
        if not os.path.exists(path):
            continue  # count_tests.py counts it as a failure
        with open(path, encoding="utf-8") as log:
            for line in log:
                test = json.loads(line)
                output = test.get("stdout", "")
                passed, failed, skipped = count_tests.count(test["result"], output)
                cases = [int(number) for number in CASES.findall(output)]
                tried = sum(cases) if cases else passed + failed
                yield test["name"].split(" / ")[-1], 0 if skipped else tried, failed, skipped


def count_promise(row, tests):
    """Cases, failures and skipped tests as texts."""
    patterns = patterns_of(row)
    found = [test for test in tests if any(fnmatch.fnmatchcase(test[0], pattern) for pattern in patterns)]
    cases, failed, skipped = (sum(test[i] for test in found) for i in (1, 2, 3))
    if skipped == len(found):
        return NOT_RUN, "-", str(skipped) if found else "-"
    return f"{cases:,}", str(failed), str(skipped)


def find_missing(rows, tests):
    """The names of the table that no test has, and the tests with such names that ran in no build."""
    ran = {name for name, _, _, skipped in tests if not skipped}
    names = {name for name, _, _, _ in tests}
    for pattern in (pattern for row in rows for pattern in patterns_of(row)):
        matching = sorted(name for name in names if fnmatch.fnmatchcase(name, pattern))
        yield from (f"{name} was skipped" for name in matching if name not in ran)
        if not matching:
            yield f"no test has the name {pattern}"


def print_table(rows):
    lines = [[COLUMNS[0], *COLUMNS[3:]]] + [[row[0], *row[3:]] for row in rows]
    widths = [max(len(line[i]) for line in lines) for i in range(4)]
    for promise, *numbers in lines:
        print("  ".join([f"{promise:<{widths[0]}}", *(f"{number:>{width}}" for number, width in zip(numbers, widths[1:]))]))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--table", type=pathlib.Path, default=TABLE)
    parser.add_argument("logs", nargs="*")
    arguments = parser.parse_args()
    rows, before, after = read_rows(arguments.table.read_text(encoding="utf-8"))
    tests = list(read_tests(arguments.logs))
    rows = [[*row[:3], *count_promise(row, tests)] for row in rows]
    print_table(rows)
    if arguments.write:
        text = "\n".join([before, *(f"| {' | '.join(row)} |" for row in rows), after])
        arguments.table.write_text(text, encoding="utf-8")
    missing = list(find_missing(rows, tests)) if arguments.all else []
    for line in missing:
        print(f"a promise was not tried: {line}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
