"""Sums up meson's test logs: the tests that each program counts, one for a script.

Usage: count_tests.py FAILED LOG...; FAILED are added, of what has no log. Prints
"N passed, N failed, N skipped"; exits 1 if any failed or none passed.
"""
import json
import os
import re
import sys

# Check's closing line: "95%: Checks: 20, Failures: 1, Errors: 0".
CHECK = re.compile(r"^\d+%: Checks: (\d+), Failures: (\d+), Errors: (\d+)", re.MULTILINE)


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
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 0 if passed and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
