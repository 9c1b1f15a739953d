"""Whether the memory that tools/shard-plan says is what the trainer and a head alone report: in each kind and in all.

Usage: check_shard_plan.py SHARD_PLAN SHARDRUN IMAGENET PROGRAM all|some. PROGRAM is plan_program, a head alone. some: every second run.
A kind may differ by 3 % of it or by 1 % of the sum: workspaces are those of the CPU's kernels. The plan's are those of a CPU that
multiplies bfloat16, with AVX-512: others widen blocks of 16-bit operands, of 64 MiB at most, and round the rows of a stash up to
fewer floats.
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

PART, OF_SUM = 0.03, 0.01
MIB = 1 << 20
LIMIT = 60 * float(os.environ.get("CK_TIMEOUT_MULTIPLIER", "1"))  # seconds of a plan
WIDENED = 64 * MIB  # shard_cpu_wide_elements of float32
PADDED = 4 * MIB  # of a stash of 100,000 classes and 8 rows, which the plan rounds up to the 16 floats of a vector
RESNET = "--arch resnet18 --stem small --image-size 16 --batch 16 --bucket-mib 4"
TRAINER = ("-a resnet18 --stem small --image-size 16 -b 16 --bucket-mib 4 --synthetic 32 --val-interval 0 -j 1 --seed 7 --sync-bn "
           "--lr 1e-4 --steps 3 --memory-report")
COLUMN = "--enable-model-parallel --model-parallel-dim column"
# Ranks, options of the plan, options of the trainer.
RUNS = [
    (1, "--classes 1000", "--num-classes 1000"),
    (1, "--classes 50000", "--num-classes 50000"),
    (1, "--classes 10000 --precision amp", "--num-classes 10000 --enable-amp-mode bf16"),
    (1, "--classes 10000 --optimizer adamw", "--num-classes 10000 --optimizer adamw"),
    (1, "--classes 10000 --optimizer none --accumulate 2", "--num-classes 10000 --momentum 0 --accumulate 2"),
    (1, "--classes 1000 --arch resnet50 --image-size 32", "--num-classes 1000 -a resnet50 --image-size 32"),
    (1, "--classes 100 --stem imagenet --image-size 64", "--num-classes 100 --stem imagenet --image-size 64"),
    (1, "--classes 1000 --width 24", "--num-classes 1000 --width 24"),
    (2, "--classes 10000 --model 1", "--num-classes 10000"),
    (2, "--classes 20001 --head plain", f"--num-classes 20001 --head plain {COLUMN}"),
    (2, "--classes 50000 --precision amp --head plain", f"--num-classes 50000 --head plain --enable-amp-mode bf16 {COLUMN}"),
    (2, "--classes 20000 --model 1 --zero 1", "--num-classes 20000 --enable-zero-optim 1"),
    (2, "--classes 20000 --model 1 --zero 2", "--num-classes 20000 --enable-zero-optim 2"),
    (2, "--classes 20000 --model 1 --zero 3", "--num-classes 20000 --enable-zero-optim 3"),
    (2, "--classes 20000 --zero 3 --head plain", f"--num-classes 20000 --head plain --enable-zero-optim 3 {COLUMN}"),
    (2, "--classes 20000 --model 1 --zero 3 --precision amp", "--num-classes 20000 --enable-zero-optim 3 --enable-amp-mode bf16"),
    (4, "--classes 40000 --head plain", f"--num-classes 40000 --head plain {COLUMN}"),
    (4, "--classes 40000 --model 2 --head plain", f"--num-classes 40000 --head plain --model-parallel-size 2 {COLUMN}"),
    (4, "--classes 40000 --model 2 --zero 1 --optimizer adamw --head plain",
     f"--num-classes 40000 --head plain --model-parallel-size 2 --enable-zero-optim 1 --optimizer adamw {COLUMN}"),
    (4, "--classes 40000 --model 2 --zero 2", f"--num-classes 40000 --model-parallel-size 2 --enable-zero-optim 2 {COLUMN}"),
    (4, "--classes 40000 --model 2 --zero 3", f"--num-classes 40000 --model-parallel-size 2 --enable-zero-optim 3 {COLUMN}"),
    (4, "--classes 40000 --model 1 --zero 2 --precision amp", "--num-classes 40000 --enable-zero-optim 2 --enable-amp-mode bf16"),
    (1, "--classes 20000 --head fused", "--num-classes 20000 --head fused"),
    (2, "--classes 40000 --precision amp", f"--num-classes 40000 --enable-amp-mode bf16 {COLUMN}"),
    (4, "--classes 40000 --model 2 --head fused", f"--num-classes 40000 --head fused --model-parallel-size 2 {COLUMN}"),
    (4, "--classes 40000 --model 2 --head fused --zero 1",
     f"--num-classes 40000 --head fused --model-parallel-size 2 --enable-zero-optim 1 {COLUMN}"),
    (4, "--classes 40000 --model 2 --head fused --accumulate 2",
     f"--num-classes 40000 --head fused --model-parallel-size 2 --accumulate 2 {COLUMN}"),
    (2, "--classes 60000 --head-dtype bfloat16",
     f"--num-classes 60000 --head-dtype bfloat16 {COLUMN}"),
    (2, "--classes 60000 --head-dtype bfloat16 --head-state none --kahan",
     f"--num-classes 60000 --head-dtype bfloat16 --head-rounding kahan --head-optimizer sgd {COLUMN}"),
    (2, "--classes 60000 --head-state rowwise-adagrad",
     f"--num-classes 60000 --head-optimizer rowwise-adagrad {COLUMN}"),
    (2, "--classes 60000 --head-state rowwise-adam --sample-rate 0.1",
     f"--num-classes 60000 --head-optimizer rowwise-adam --sample-rate 0.1 {COLUMN}"),
    (1, "--classes 100000 --width 8 --head fused --head-stash 0", "--num-classes 100000 --width 8 --head fused --head-stash 0"),
    (1, "--classes 100000 --width 8 --head fused --head-stash 1", "--num-classes 100000 --width 8 --head fused --head-stash 1"),
    (1, "--classes 100000 --width 8 --head fused --head-stash 1 --accumulate 2",
     "--num-classes 100000 --width 8 --head fused --head-stash 1 --accumulate 2"),
    (4, "--classes 40000 --model 2 --head fused --sample-rate 0.1",
     f"--num-classes 40000 --model-parallel-size 2 --sample-rate 0.1 {COLUMN}"),
]
# Ranks, classes, features, batch of all ranks, head, state, dtype of weight and state, and stash: of a head alone.
HEADS = [
    (1, 100000, 512, 32, "plain", "momentum", "float32"),
    (1, 100000, 512, 32, "fused", "momentum", "float32"),
    (2, 100000, 512, 64, "fused", "momentum", "float32"),
    (2, 100001, 256, 128, "fused", "none", "float32"),
    (4, 200000, 512, 64, "fused", "adamw", "float32"),
    (4, 200000, 512, 64, "plain", "adamw", "float32"),
    (2, 200000, 512, 64, "fused", "momentum", "bfloat16"),
    (2, 200000, 512, 64, "plain", "momentum", "bfloat16"),
    (2, 200000, 512, 64, "fused", "none", "kahan"),
    (2, 200000, 512, 64, "fused", "rowwise-adam", "float32"),
    (2, 200000, 512, 64, "fused", "rowwise-adagrad", "float32"),
    (1, 100000, 64, 128, "fused", "momentum", "float32", 0),
    (1, 100000, 64, 128, "fused", "momentum", "float32", 1),
    (2, 200000, 64, 128, "fused", "none", "bfloat16", 0.5),
    (2, 200000, 64, 128, "fused", "none", "bfloat16", 9),
    (1, 100000, 512, 32, "fused", "momentum", "float32", 9),
    (2, 200000, 64, 128, "fused", "none", "float32", 0.5),
]


def report_of(command):
    """Peaks by kind of the last report, in bytes."""
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}: {done.stdout[-2000:]}")
    return {name.strip(): float(peak) * MIB for name, peak in re.findall(r"^  ([a-z][a-z ]+?) +[\d.]+ +([\d.]+)$", done.stdout, re.MULTILINE)}


def has(instructions):
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        return instructions in file.read()


def compare(name, plan, report):
    """What is wrong; prints a line."""
    said = {**plan["peak_by_kind"], "in all": plan["bytes"]}
    widens = ("--precision amp" in name or "--head plain" in name and "bfloat16" in name) and not has("avx512_bf16")
    narrow = "--head-stash" in name and not has("avx512f")

    def is_near(kind):
        more = report[kind] - said[kind]
        bound = max(PART * report[kind], OF_SUM * report["in all"] if kind != "in all" else 0)
        less = PADDED if narrow and kind in ("activations", "workspace", "in all") else 0
        return -bound - less <= more <= bound + (WIDENED if widens and kind in ("workspace", "in all") else 0)

    wrong = [f"{kind} {said[kind] / MIB:.1f}, not {report[kind] / MIB:.1f}" for kind in said if not is_near(kind)]
    print(f"{name}: {said['in all'] / MIB:.1f} MiB, {report['in all'] / MIB:.1f} reported, "
          f"{100 * (said['in all'] / report['in all'] - 1):+.1f} %" + "".join(f"\n    {one}" for one in wrong), flush=True)
    return [f"{name}: {one}" for one in wrong]


def check_answers(ask):
    """The search for the most classes ends at the memory; parts add up; times are the longer of two limits."""
    options = "--ranks 8 --memory 12GB --gpu h100 --head fused"
    most = ask(f"{options} --most")
    assert most["fits"] and not ask(f"{options} --classes {int(1.02 * most['classes'])}")["fits"], most
    assert sum(sum(parts.values()) for parts in most["bytes_by_kind"].values()) == most["bytes"] <= 12e9, most
    small = "--parameters 0 --features 2048 --batch 8 --memory 4MB"  # each class counts where fewer than 1,000 fit
    most = ask(f"{small} --most")
    assert most["fits"] and not ask(f"{small} --classes {most['classes'] + 1}")["fits"] and 100 < most["classes"] < 1000, most
    slow = ask(f"{options} --classes 100000 --product-rate 1e15 --memory-rate 1e9")["seconds"]["head"]
    assert slow["limited_by"] == "memory", slow
    sampled = [ask(f"--classes 100000 --head plain --sample-rate {rate}")["operations"]["head"] for rate in (1, 0.1)]
    assert abs(sampled[1] / sampled[0] - 0.1) < 1e-6, sampled
    sent = [ask(f"--classes 1000 --ranks 8 --model 1 --zero {stage} --accumulate 4")["wire_bytes"]["replicas of the backbone"]
            for stage in range(4)]
    assert [round(one / sent[0], 6) for one in sent] == [1, 1.5, 2.5, 6], sent
    backbone = [ask(f"{options} --classes 100000 --head-dtype {dtype}")["seconds"]["backbone"] for dtype in ("float32", "bfloat16")]
    assert backbone[0] == backbone[1], backbone
    head = "--classes 80000 --optimizer none --model"
    alone, replicated, whole = (ask(f"{options} {head} {model}") for model in ("8", "4", "4 --zero 2"))
    moved, weight = [one["head_bytes_moved"] for one in (alone, replicated, whole)], 4 * 10000 * 2048
    assert all(abs(one - times * weight) < 0.1 * weight for one, times in zip(moved, (3, 6, 11))), (moved, weight)
    sent = replicated["wire_bytes"]["replicas of the head"]
    assert sent == 0.5 * 256 * (4 * 2048 + 32), sent
    assert replicated["bytes_by_kind"]["gradients"]["head"] < weight / 10 < whole["bytes_by_kind"]["gradients"]["head"], replicated
    assert replicated["operations"]["head"] == 1.5 * alone["operations"]["head"], (replicated, alone)
    head, weight = "--ranks 8 --model 1 --classes 100000 --optimizer adamw --head", 4 * 100000 * 2048
    moved = [[ask(f"{head} {kind} --zero {stage}")["head_bytes_moved"] for stage in (0, 1, 3)] for kind in ("fused", "plain")]
    assert moved[0][1] < moved[0][0] / 2, moved  # a rank updates an eighth of weight and state
    assert moved[1][1] < moved[1][0] - 4 * weight, moved  # and so with a whole gradient
    assert moved[1][1] < moved[1][2], moved  # values that are gathered for each use are written more often
    plain, sampled = (ask(f"{head} {kind} --sample-rate 0.1 --zero {stage}") for kind, stage in (("plain", 2), ("fused", 0)))
    assert plain["wire_bytes"]["replicas of the head"] > 1.75 * weight, plain  # whole gradients and values
    assert sampled["bytes_by_kind"]["gradients"]["head"] < weight / 10, sampled
    head = "--parameters 0 --features 512 --classes 1000000 --batch 64"
    once, twice = (ask(f"{head} --head fused --head-stash 1 --accumulate {batches}") for batches in (1, 2))  # a stash is of one micro-batch
    assert (once["operations"]["head"], twice["operations"]["head"]) == (6 * 1e6 * 64 * 512, 8 * 1e6 * 64 * 512), (once, twice)
    moved, weight = [one["head_bytes_moved"] for one in (once, twice)], 4 * 1e6 * 512
    assert 0 < moved[0] - 5 * weight - 2 * 2 * 1e6 * 64 < 0.1 * 2 * 2 * 1e6 * 64 and moved[1] == 6 * weight, moved
    once, most = (ask(f"{head} --head fused --head-stash {share}") for share in ("1", "1e305"))
    assert most["bytes"] == once["bytes"], (once, most)
    for parameters in (0, 1, 15, 17):  # fewer than layers, and a number that layers do not divide
        small = ask(f"--parameters {parameters} --features 1 --classes 2 --batch 2 --ranks 2 --zero 1")
        assert small["operations"]["backbone"] == 6 * parameters, small
    # Stage 3 keeps no 16-bit copies of the backbone: those of a layer are made for its forward, and again for its backward.
    deep = "--parameters 1.6e9 --activations 0 --features 64 --classes 1000 --ranks 8 --batch 8 --precision amp"
    copies = [ask(f"{deep} --zero {stage}")["bytes_by_kind"]["activations"]["backbone"] for stage in (2, 3)]
    assert copies[0] >= 2 * 1.6e9 and copies[1] <= 2 * 1.6e9 / 16 + 1e6, copies
    fused, plain = (ask(f"{head} --ranks 2 --model 1 --zero 3 --head {kind}") for kind in ("fused", "plain"))  # in row blocks
    assert fused["operations"] == plain["operations"] and fused["head_bytes_moved"] == plain["head_bytes_moved"], (fused, plain)
    assert fused["bytes"] == plain["bytes"], (fused, plain)


def check_refusals(shard_plan, folder):
    other, negative = folder / "other.json", folder / "negative.json"
    other.write_text("[]")
    negative.write_text('{"product_rate": 1e12, "update_bandwidth": -1}')
    refused = {"--ranks 8 --model 3": "does not divide", "--sample-rate 2": "is not in", "--most": "--most needs",
               "--head-stash -1": "--head-stash -1 is not a number of at least 0", "--head-stash nan": "--head-stash nan",
               "--parameters 1e6": "needs --features", "--features 512": "needs --parameters",
               "--batch 30 --accumulate 4": "does not divide", "--memory 3XB": "is not a number", "--classes 0": "not a whole",
               "--classes inf": "is not a number", "--parameters 1e400": "is not a number", "--bucket-mib nan": "is not a number",
               "--bucket-mib 4MiB": "is not a number", "--memory -5": "is not a number",
               "--memory 0": "is not a number of at least 1", "--network-rate 0.5": "is not a number of at least 1",
               "--activations 1e6": "needs --parameters", "--line --json": "not allowed with",
               "--parameters 1e6 --features 512 --image-size 32": "--image-size needs a ResNet",
               "--head plain --head-stash 1": "--head-stash needs a fused head", "--kahan": "--kahan needs --head-dtype bfloat16",
               "--head-stash 1 --sample-rate 0.1": "--head-stash needs a fused head", "--memory-rate 1e9": "needs --product-rate",
               "--most --memory 4GB --classes 5": "--classes needs a plan without --most", "--bench /none": "--bench /none: No such file",
               f"--bench {other}": "has not the rates", f"--bench {negative}": "has not the rates"}
    for options, message in refused.items():
        done = subprocess.run([sys.executable, shard_plan, *options.split()], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              check=False)
        assert done.returncode == 2 and message in done.stderr, (options, done)


def main():
    shard_plan, shardrun, imagenet, program, extent = sys.argv[1:6]
    every = 1 if extent == "all" else 2
    wrong = []

    def ask(options):
        done = subprocess.run([sys.executable, shard_plan, *options.split(), "--json"], stdout=subprocess.PIPE, check=True, timeout=LIMIT)
        return json.loads(done.stdout)

    with tempfile.TemporaryDirectory() as folder:
        check_refusals(shard_plan, pathlib.Path(folder))
    check_answers(ask)
    for ranks, options, trainer in RUNS[::every]:
        plan = ask(f"{RESNET} --ranks {ranks} {options}")
        wrong += compare(f"{ranks} ranks {options}", plan, report_of([shardrun, "-n", str(ranks), imagenet, *TRAINER.split(), *trainer.split()]))
    for ranks, classes, features, batch, head, state, dtype, *stash in HEADS[every > 1::every]:
        options = f"--parameters 0 --features {features} --classes {classes} --batch {batch} --head {head} --head-state {state}"
        narrow = "bfloat16" if dtype == "kahan" else dtype
        share = str(stash[0] if stash else 0.05)
        options += f" --head-stash {share} --head-dtype {narrow} --state-dtype {narrow}" + (" --kahan" if dtype == "kahan" else "")
        plan = ask(f"{options} --ranks {ranks}")
        words = [str(classes), str(features), str(batch), head, state, dtype, share]
        wrong += compare(f"{ranks} ranks {options}", plan, report_of([shardrun, "-n", str(ranks), program, *words]))
    sys.exit("; ".join(wrong) if wrong else 0)


if __name__ == "__main__":
    main()
