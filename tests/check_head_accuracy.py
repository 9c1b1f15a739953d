"""tools/head-accuracy at a tiny size: each layer is trained and has its row, and a second call reads what the first has kept.

Usage: check_head_accuracy.py HEAD_ACCURACY BUILD
"""
import json
import os
import re
import subprocess
import sys
import tempfile

TINY = "--synthetic 24 --classes 50 --epochs 1 --image-size 8 --stem small --batch 12"


def table(text):
    """The rows' cells, without the head."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")][2:]


def main():
    tool, build = sys.argv[1:3]
    with tempfile.TemporaryDirectory() as folder:
        keep = os.path.join(folder, "keep.json")
        command = [sys.executable, tool, *TINY.split(), "--build", build, "--keep", keep]
        run = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False,
                   env={**os.environ, "OMP_NUM_THREADS": "1"})
        first = subprocess.run(command, **run)
        assert first.returncode == 0, first.stderr
        rows = table(first.stdout)
        assert len(rows) == 6 and len({row[0] for row in rows}) == 6, rows
        assert all(re.fullmatch(r"[\d.]+ %", cell) for row in rows for cell in row[1:3]), rows
        with open(keep, encoding="utf-8") as file:
            kept = json.load(file)["layers"]
        losses = [of["loss"] for of in kept.values()]
        assert len(set(losses)) == 6, losses  # six layers, not one six times
        assert subprocess.run([*command[:-3], "/nowhere", *command[-2:]], **run).stdout == first.stdout
        other = subprocess.run([*command, "--seed", "2"], **run)
        assert other.returncode and "other settings" in other.stderr, other.stderr
        with open(keep, "w", encoding="utf-8") as file:
            file.write("[]")
        other = subprocess.run(command, **run)
        assert other.returncode == 1 and "is not what head-accuracy has kept" in other.stderr, other.stderr
        nowhere = subprocess.run([*command[:-3], "/nowhere"], **run)
        assert nowhere.returncode == 1 and "head-accuracy: /nowhere/tools/shardrun: No such file" in nowhere.stderr, nowhere.stderr
        none = subprocess.run([sys.executable, tool], **run)
        assert none.returncode == 2 and "IMAGES or --synthetic" in none.stderr, none.stderr


if __name__ == "__main__":
    main()
