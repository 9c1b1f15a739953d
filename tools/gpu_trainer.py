"""Trains a ResNet on made-up images for some steps on the CPU and on the GPU, and compares the losses.

gpu_trainer.py BUILD RESULTS [--small] [--limit SECONDS]; into RESULTS/trainer.json. Runs whose
losses were close are not repeated. Exit code 0: all are close; 1: not; 75: the time was over before all had run.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

import gpu_report

UNFINISHED = 75
USUAL = "-a resnet18 --stem small --image-size 32 --synthetic 1280 --num-classes 1000 -b 64 --steps 20"
SMALL = "-a resnet18 --stem small --image-size 8 --synthetic 22 --num-classes 101 -b 11 --steps 2"
COMMON = "--lr 1e-3 --seed 7 --epochs 1 --val-interval 0 -p 5"
SPLIT = "--sync-bn --enable-model-parallel --model-parallel-dim"
# Name, ranks, options, and by how much of itself a loss may differ from the CPU's: order of sums, or 8 bits of mantissa.
RUNS = [
    ("CPU", 1, "--device cpu", 0),
    ("GPU", 1, "--device cuda", 1e-3),
    ("2 ranks, last layer split by column", 2, f"--device cuda {SPLIT} column", 1e-3),
    ("2 ranks, last layer split by row", 2, f"--device cuda {SPLIT} row", 1e-3),
    ("2 ranks, ZeRO 3", 2, "--device cuda --sync-bn --enable-zero-optim 3", 1e-3),
    ("GPU, bfloat16", 1, "--device cuda --enable-amp-mode bf16", 5e-2),
]


def losses(path):
    return [line["loss"] for line in gpu_report.lines_of(path) if not line.get("validation")]


def train(options, index, left):
    """The run's losses and its seconds; its log stays in the results."""
    _, ranks, arguments, _ = RUNS[index]
    metrics, log = options.results / f"trainer-{index}.jsonl", options.results / f"log-trainer-{index}.txt"
    metrics.unlink(missing_ok=True)
    launcher = [str(options.build / "tools/shardrun"), "-n", str(ranks)] if ranks > 1 else []
    command = [*launcher, str(options.build / "projects/imagenet/imagenet"), *(SMALL if options.small else USUAL).split(), *COMMON.split(),
               *arguments.split(), "--metrics", str(metrics)]
    environment = dict(os.environ, SHARD_PLUGIN_PATH=str(options.build / "libshard"), SHARD_LOG="info",
                       CUDA_VISIBLE_DEVICES=os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0])
    started = time.monotonic()
    with open(log, "w", encoding="utf-8") as file:
        try:
            code = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environment, timeout=left, check=False).returncode
        except subprocess.TimeoutExpired:
            code = None
    return losses(metrics), round(time.monotonic() - started, 1), code


def compare(found, reference, tolerance):
    """The largest relative difference, and what that means."""
    if not reference:
        return None, "the CPU has no losses to compare with"
    if len(found) != len(reference):
        return None, f"{len(found)} steps instead of {len(reference)}"
    for step, pair in enumerate(zip(found, reference)):
        if None in pair: # as --metrics has it
            return None, f"the loss of step {step} is not finite" + (" on the CPU" if pair[1] is None else "")
    difference = max(abs(a - b) / max(abs(b), 1e-12) for a, b in zip(found, reference))
    return difference, "agrees" if difference <= tolerance else f"differs by more than {tolerance:g}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("results", type=pathlib.Path)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--limit", type=float, default=540)
    options = parser.parse_args()
    options.build, options.results = options.build.resolve(), options.results.resolve()
    deadline, reference, runs, good = time.monotonic() + options.limit, [], [], True
    if not (options.build / "projects/imagenet/imagenet").exists():
        (options.results / "skipped-trainer.txt").write_text("the trainer was not built: libjpeg or libpng is missing\n", encoding="utf-8")
        return 0
    found = gpu_report.object_of(options.results / "trainer.json")
    before = {run["name"]: run for run in found.get("runs", []) if run["verdict"] == "agrees" and found.get("small") == options.small}
    if RUNS[0][0] in before:
        reference = losses(options.results / "trainer-0.jsonl")
    if not reference: # the earlier verdicts are of other losses of the CPU
        before = {}
    for index, (name, _, _, tolerance) in enumerate(RUNS):
        if name in before:
            runs.append(before[name])
            continue
        values, seconds, code = train(options, index, max(1, deadline - time.monotonic()))
        if code is None:
            print(f"{name}: the time was over; run the step again for the rest")
            return UNFINISHED
        if index == 0 and code == 0:
            reference = values
        difference, verdict = compare(values, reference, tolerance)
        if code != 0:
            verdict = f"exit code {code}; log-trainer-{index}.txt"
        good = good and code == 0 and verdict == "agrees"
        runs.append({"name": name, "first": values[0] if values else None, "last": values[-1] if values else None,
                     "difference": None if difference is None else float(f"{difference:.2g}"), "seconds": seconds, "verdict": verdict})
        (options.results / "trainer.json").write_text(json.dumps({"small": options.small, "runs": runs}, indent=1), encoding="utf-8")
        print(f"{name}: {verdict}, {runs[-1]['difference']}, {seconds} s", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
