#!/usr/bin/env python3
"""Prints a row of README.md's table: figures.py TRAINING TEST CORRECTIONS OPTIONS

    TRAINING     the file of --metrics
    TEST         that of spell -e
    CORRECTIONS  what spell --correct has written to standard error
    OPTIONS      of the run, for the first column
"""
import json
import re
import sys

COLUMNS = ["options", "words", "top-1 %", "top-5 %", "steps, s", "memory of a rank, MiB", "resident, MiB", "ms a word of --correct"]


def read_lines(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def main(argv):
    training, test, corrections, options = argv
    # A run that goes on repeats the steps since its checkpoint.
    steps = {line["step"]: line for line in read_lines(training) if not line.get("validation")}
    result = read_lines(test)[-1]
    with open(corrections, encoding="utf-8") as file:
        milliseconds = re.findall(r"([\d.]+) ms a word", file.read())[-1]
    row = [options or "-", f"{result['num_classes']:,}", f"{result['top1']:.2f}", f"{result['top5']:.2f}",
           f"{sum(line['step_seconds'] for line in steps.values()):.0f}", f"{max(line['memory_mib']['peak'] for line in steps.values()):.0f}",
           f"{max(line['rss_mib'] for line in steps.values()):.0f}", milliseconds]
    print("| " + " | ".join(COLUMNS) + " |\n|---|" + "---:|" * (len(COLUMNS) - 1) + "\n| " + " | ".join(row) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
