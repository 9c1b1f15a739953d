"""The quickstart's closing table, from the trainer's --metrics files.

Usage: summary.py TRAIN EVALUATE_1 EVALUATE_3 MILLION. Exits 1 if the checkpoint does not
give the same accuracy on every number of ranks.
"""
import json
import statistics
import sys


def read(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def row(name, lines):
    """One line of the table, from all lines of one run."""
    steps = [line for line in lines if not line.get("validation")]
    checks = [line for line in lines if line.get("validation")]
    timed = steps[1:] or steps or checks
    last = lines[-1]
    return [
        name,
        f"{last['num_classes']:,}",
        str(len(last["ranks"])),
        f"{max(rank['parameters'] for rank in last['ranks']):,}",
        f"{max(line['memory_mib']['peak'] for line in lines):,.0f}",
        f"{statistics.median(line['images_per_second'] for line in timed):,.0f}",
        f"{checks[-1]['top1']:.2f} %" if checks else "",
    ]


def main():
    train, one, three, million = [read(path) for path in sys.argv[1:5]]
    table = [
        ["", "classes", "ranks", "parameters a rank", "peak MiB a rank", "images/s", "top-1, kept-out font"],
        row("trained", train),
        row("reloaded", one),
        row("reloaded", three),
        row("a million", million),
    ]
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    for line in table:
        print("  ".join(cell.ljust(width) if not column else cell.rjust(width)
                        for column, (cell, width) in enumerate(zip(line, widths))))
    accuracies = [lines[-1]["top1"] for lines in (train, one, three)]
    if max(accuracies) - min(accuracies) > 1e-9:
        print(f"the checkpoint does not give the same accuracy everywhere: {accuracies}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
