"""Sums up meson's test logs: the tests that each program counts, one for a script.

Usage: count_tests.py FAILED LOG...; FAILED is added to the failures: stages without a log.
Prints each failed program with its failures, then "N passed, N failed, N skipped".
Exits 1 if any test failed or none passed.
"""
import json
import os
import re
import sys

# Check's closing line: "95%: Checks: 20, Failures: 1, Errors: 0".
CHECK = re.compile(r"^\d+%: Checks: (\d+), Failures: (\d+), Errors: (\d+)", re.MULTILINE)

# One failure, as Check reports it: "file.c:12:F:case:test:0: message".
FAILURE = re.compile(r"^\S+:\d+:[FE]:.*", re.MULTILINE)
LINES_SHOWN = 20


def count(result, output):
    """Passed, failed and skipped tests of one program."""
    if result == "SKIP":
        return 0, 0, 1
    good = result in ("OK", "EXPECTEDFAIL")
    sums = CHECK.findall(output)
    total = sum(int(tests) for tests, _, _ in sums)
    failed = sum(int(failures) + int(errors) for _, failures, errors in sums)
    if not sums:
        total, failed = 1, 0 if good else 1
    if not good and not failed:
        failed = 1  # it ended badly after its tests
        total = max(total, 1)
    return total - failed, failed, 0


def describe(path, test):
    """One failed program: its build, its name, its failures or else its last lines."""
    output = test.get("stdout", "") + test.get("stderr", "")
    lines = FAILURE.findall(output) or output.rstrip().splitlines()[-LINES_SHOWN:]
    build = os.path.basename(os.path.dirname(os.path.dirname(path)))
    title = f"{build}: {test['name']}: {test['result']} after {test['duration']:.0f} s"
    return "\n    ".join([title, *lines[:LINES_SHOWN]])


def main():
    passed, failed, skipped = 0, int(sys.argv[1]), 0
    for path in sys.argv[2:]:
        if not os.path.exists(path):
            failed += 1  # meson itself failed
            continue
        with open(path, encoding="utf-8") as log:
            for line in log:
                test = json.loads(line)
                counts = count(test["result"], test.get("stdout", ""))
                passed, failed, skipped = passed + counts[0], failed + counts[1], skipped + counts[2]
                if counts[1]:
                    print(describe(path, test))
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 0 if passed and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
