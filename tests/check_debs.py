"""check_debs.py SHARDRUN DEBS PREPARE: the data that prepare makes of an index, training on one rank and on several, resuming on
another number of ranks, measures with other propensities and next to those of baselines.py (where SciPy is installed), and errors."""
import gzip
import importlib.util
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from support.checkpoints import change_checkpoint
from support.trainers import LIMIT, Trainer, check, compare, report, run_script

SHARDRUN, DEBS, PREPARE = sys.argv[1:]
BASELINES = pathlib.Path(PREPARE).resolve().parent / "baselines.py"
RUN = "--hidden 12 --layers 2 --dropout 0.1 -b 24 --epochs 8 --lr 0.03 --val-interval 8 --seed 5".split()
TOPICS = "audio browser compiler editor fonts game image kernel library music network office parser python server shell".split()

EXACT = """Package: one
Version: 1
Depends: libc6 (>= 2.4), debconf (>= 0.5) | debconf-2.0, python3:any
Pre-Depends: dpkg (>= 1.17.5) [amd64], libc6
Recommends: x-www-browser <!nocheck>
Description: a small tool
 with a second line

Package: two
Depends: libc6
Description: C++ tool

Package: three
Description: no dependencies

Package: two
Depends: never-read
Description: an older version
"""
TRAINER = Trainer(SHARDRUN, DEBS)


def prepare(*arguments):
    return run_script(PREPARE, *arguments)


def train(folder, *options, data="data", ranks=1, expect=None):
    return TRAINER.train(folder / "metrics.json", *RUN, *options, folder / data, ranks=ranks, expect=expect)


def numbers(lines):
    return [line["p1" if line.get("validation") else "loss"] for line in lines]


def check_prepare(folder):
    (folder / "exact").write_text(EXACT)
    done = prepare("--index", folder / "exact", "--features", 64, folder / "none")
    check(done.returncode == 1 and "leave a set empty" in done.stderr, f"two points: {done}")
    # Enough packages that both sets have some.
    packages = [f"\nPackage: filler{i}\nDepends: libc6\nDescription: filler tool {i}\n" for i in range(40)]
    (folder / "exact").write_text(EXACT + "".join(packages))
    done = prepare("--index", folder / "exact", "--features", 64, folder / "exact-data")
    check(done.returncode == 0 and done.stdout.startswith("43 packages, 42 with labels: "), f"{done}")
    labels = (folder / "exact-data/labels.txt").read_text().split()
    check(labels == ["debconf", "debconf-2.0", "dpkg", "libc6", "python3", "x-www-browser"], f"labels are {labels}")
    points = {}
    for stem in ("train", "test"):
        lines = (folder / f"exact-data/{stem}.txt").read_text().splitlines()
        names = (folder / f"exact-data/{stem}-packages.txt").read_text().split()
        check(lines[0] == f"{len(names)} 64 6" and len(lines) == len(names) + 1, f"{stem}.txt: {lines[0]}")
        points |= dict(zip(names, lines[1:]))
    check(points["one"].split(" ")[0] == "0,1,2,3,4,5" and points["two"].split(" ")[0] == "3", f"{points['one']} {points['two']}")
    squares = sum(float(pair.split(":")[1]) ** 2 for pair in points["one"].split(" ")[1:])
    check(abs(squares - 1) < 1e-3, f"the norm is {squares}")
    damaged = folder / "damaged.gz"
    content = bytearray(gzip.compress(EXACT.encode()))
    content[12:20] = b"\xff" * 8
    damaged.write_bytes(content)
    done = prepare("--index", damaged, folder / "none")
    check(done.returncode == 1 and done.stderr.startswith(f"prepare: {damaged}: ") and done.stderr.count("\n") == 1, f"damaged: {done}")
    (folder / "apt-cache").write_text("#!/bin/sh\necho no lists >&2\nexit 100\n")
    (folder / "apt-cache").chmod(0o755)
    done = subprocess.run([sys.executable, PREPARE, folder / "none"], capture_output=True, text=True, timeout=LIMIT,
                          env=dict(os.environ, PATH=f"{folder}:{os.environ['PATH']}"))
    check(done.returncode == 1 and "exit status 100" in done.stderr and done.stderr.endswith("no lists\n") and done.stderr.count("\n") == 1,
          f"apt-cache fails: {done}")
    done = prepare("--index", "/dev/null", folder / "none")
    check(done.returncode == 1 and "has no packages: run `apt-get update`" in done.stderr, f"{done}")


def make_data(folder):
    """Packages whose description says what they depend on."""
    text = ""
    for i in range(220):
        a, b = TOPICS[i % 16], TOPICS[i * 7 % 13]
        text += f"Package: p{i}\nDepends: lib{a}, lib{b} | lib{b}-alt\nDescription: {a} and {b} number {i % 5}\n\n"
    (folder / "index").write_text(text)
    done = prepare("--index", folder / "index", "--features", 256, folder / "data")
    check(done.returncode == 0, f"{done}")


def check_prepare_options(folder):
    other = "Recommends: extra\nSuggests: audio-doc, image-doc\n"
    text = (folder / "index").read_text()
    for package in ("p3", "p7"): # of the training set and of the test
        text = text.replace(f"Package: {package}\n", f"Package: {package}\n{other}")
    (folder / "index-options").write_text(text)

    def read(*options):
        """Labels, the packages of the test, and how many features p1 has."""
        done = prepare("--index", folder / "index-options", *options, folder / "options")
        check(done.returncode == 0, f"{options}: {done}")
        labels, test, names = ((folder / f"options/{name}.txt").read_text().split() for name in ("labels", "test-packages", "train-packages"))
        points = (folder / "options/train.txt").read_text().splitlines()[1:]
        return labels, test, points[names.index("p1")].count(":") if "p1" in names else None

    labels, test, features = read()
    check({"p7", "p100", "p214"} <= set(test) and len(test) == 20, f"the packages of the test are {test}")
    check(features == 9, f"5 words and 4 pairs of words are {features} features")
    rare = ["audio-doc", "extra", "image-doc"]
    found = read("--fields", "Suggests,Recommends")
    check(found[:2] == (rare, ["p7"]), f"--fields: {found}")
    found = read("--min-packages", 3)[0]
    check(found == [label for label in labels if label not in rare] and len(labels) == len(found) + 3, f"--min-packages 3: {found} of {labels}")
    for options, count in ((["--ngrams", 1], 5), (["--ngrams", 3], 12), (["--with-name"], 12)):
        found = read(*options)[2]
        check(found == count, f"{options}: {found} features, not {count}")


def check_ranks(folder, one):
    check(len(one) == 73 and one[-1].get("validation") and one[-1]["p1"] > 60, f"one rank: {len(one)} lines, {one[-1]}") # 9 steps an epoch
    check(one[0]["loss"] > 2 * one[-2]["loss"], f"the loss goes from {one[0]['loss']} to {one[-2]['loss']}")
    expected = numbers(one)
    for ranks, options in ((2, ["--enable-model-parallel"]), (2, []), (4, ["--enable-model-parallel", "--model-parallel-size", 2])):
        compare(f"{ranks} ranks {options}", numbers(train(folder, *options, ranks=ranks)), expected)
    some = train(folder, "--loss-every", 4, "--enable-model-parallel", ranks=2)
    check(["loss" in line for line in some[:-1]] == [i % 4 == 0 for i in range(72)], f"losses of each fourth step: {some[:5]}")
    compare("the loss in each fourth step", [line["loss"] for line in some[:-1:4]] + [some[-1]["p1"]], numbers(one)[:-1:4] + [one[-1]["p1"]])
    fewer = ["--feature-dropout", 0.3, "--steps", 9]
    dropped = numbers(train(folder, *fewer))
    check(all(abs(a - b) > 1e-3 for a, b in zip(dropped, expected)), f"no feature is dropped: {dropped}")
    compare("dropped features on 2 ranks", numbers(train(folder, *fewer, "--enable-model-parallel", ranks=2)), dropped)


def check_resume(folder, one):
    out = folder / "out"
    saved = ["--output", out, "--keep", 2, "--save-every", 4]
    compare("the first part", numbers(train(folder, *saved, "--steps", 10)), numbers(one)[:10], 0)
    rest = train(folder, *saved, "--resume", "auto", "--enable-model-parallel", ranks=2)
    check(rest[0]["step"] == 11, f"goes on with step {rest[0]['step']}")
    compare("the rest on two ranks", numbers(rest), numbers(one)[10:])
    newest = max(out.glob("step-*/checkpoint.safetensors"))
    check(newest.parent.name == f"step-{one[-2]['step']:06d}" and len(list(out.glob("step-*"))) == 2, f"{newest}")
    again = train(folder, "-e", "--resume", out / "best.safetensors")
    compare("-e", [again[0]["p1"], again[0]["psp5"]], [rest[-1]["p1"], rest[-1]["psp5"]])
    for option, text in ((["--hidden", 8], "its hidden is 12, not 8; start with the run's own --hidden"),
                         (["--optimizer", "sgd"], "its optimizer is adam, not sgd; start with the run's own --optimizer")):
        train(folder, *option, "--resume", newest, expect=text)
    sgd = ["--optimizer", "sgd", "--output", folder / "runs/of/sgd"] # in folders that are not there
    train(folder, *sgd, "--steps", 1)
    train(folder, *sgd, "--momentum", 0, "--resume", folder / "runs/of/sgd/checkpoint.safetensors",
          expect="its momentum is yes, not no; start with the run's own --momentum")
    check_overwrite(folder, sgd)
    train(folder, "--resume", out / "model.safetensors", expect="its metadata has no epoch; is it a checkpoint.safetensors")
    train(folder, "--output", out, expect="has checkpoints of a run with --keep: give it, or take another folder")
    newest.write_bytes(newest.read_bytes()[:-40]) # damaged: the one before is taken
    (folder / "work/auto").mkdir(parents=True) # a folder of that name is not what is resumed from
    done = TRAINER.run(*RUN, *saved, "--resume", "auto", folder / "data", folder=folder / "work")
    check(done.returncode == 0 and "resumed from" in done.stdout and newest.parent.name not in done.stdout.split("resumed from")[1],
          f"{done}")


def check_overwrite(folder, sgd):
    """A run that was to go on, but is begun without --resume, replaces no checkpoint."""
    latest, best = (folder / "runs/of/sgd" / name for name in ("checkpoint.safetensors", "best.safetensors"))
    content = latest.read_bytes()
    text = "/sgd has a {}: go on with --resume auto, take another folder, or replace it with --overwrite"
    for ranks in (1, 2):
        train(folder, *sgd, "--steps", 2, ranks=ranks, expect=text.format(latest.name))
    check(latest.read_bytes() == content, "a checkpoint was replaced")
    latest.rename(best)
    train(folder, *sgd, "--steps", 2, expect=text.format(best.name))
    best.unlink()
    train(folder, *sgd, "--steps", 2, expect=text.format("model.safetensors"))
    best.write_bytes(content)
    check(len(train(folder, *sgd, "--steps", 2, "--overwrite")) == 2 and latest.exists() and not best.exists(), "--overwrite")
    train(folder, *sgd, "--overwrite", "--resume", "auto", expect="--resume auto goes on, and --overwrite begins anew: one of them")
    train(folder, "--overwrite", expect="--overwrite needs --output")


def check_other_folder(folder):
    """A run that goes on in another folder has the latest model there until its result is better than that of the run before."""
    before, after = folder / "before", folder / "after"
    options = ["--val-interval", 1, "--output", after]
    train(folder, "--epochs", 1, "--val-interval", 1, "--lr", 0, "--output", before)
    train(folder, "--lr", 0, "--epochs", 2, *options, "--resume", before / "checkpoint.safetensors")
    names = sorted(path.name for path in after.iterdir())
    check(names == ["checkpoint.safetensors", "model.safetensors"], f"{names}")
    first = (after / "model.safetensors").read_bytes()
    train(folder, "--epochs", 8, *options, "--resume", "auto")
    names = sorted(path.name for path in after.iterdir())
    check(names == ["best.safetensors", "checkpoint.safetensors", "model.safetensors"] and (after / "model.safetensors").read_bytes() != first,
          f"a better result: {names}")


def check_diverged(folder):
    """Weights that are not finite replace no checkpoint, also where most steps compute no loss."""
    out = folder / "diverged"
    train(folder, "--optimizer", "sgd", "--lr", 1e30, "--loss-every", 100, "--save-every", 5, "--output", out, expect="the loss of step 5 is")
    check(list(out.iterdir()) == [], f"{list(out.iterdir())}")


def check_data(folder):
    """A model is of its training set, also where another one has as many features and labels; dropout counts within an epoch."""
    done = prepare("--index", folder / "index", "--features", 256, "--with-name", folder / "data-name")
    first, other = ((folder / name / "train.txt").read_text().splitlines() for name in ("data", "data-name"))
    check(done.returncode == 0 and first[0] == other[0] and first[1:] != other[1:], f"--with-name: {done}, {other[:2]}")
    file = folder / "within/checkpoint.safetensors"
    train(folder, "--output", folder / "within", "--steps", 4)
    for options in (["-e", "--resume", folder / "out/best.safetensors"], ["--resume", file]):
        train(folder, *options, data="data-name", expect="its training_set is ")
        train(folder, *options, data="data-name", expect="start with the run's own DIR")
    for option, value in (("dropout", 0.1), ("feature-dropout", 0)):
        train(folder, f"--{option}", 0.25, "--resume", file, expect=f"is {value}, not 0.25; start with the run's own --{option}")
    change_checkpoint(file, dict.fromkeys(("training_set", "dropout", "feature_dropout"))) # a file of an older program
    lines = train(folder, "--feature-dropout", 0.25, "--resume", file, "--steps", 6)
    check(len(lines) == 2, f"goes on with {lines}")


def check_measures(folder):
    """Other propensities; and a model whose scores are the labels' frequencies predicts what the baseline of that name does, also of
    lines that end with a space."""
    out, data = folder / "frequency", folder / "spaces"
    train(folder, "--lr", 0, "--epochs", 1, "--val-interval", 1, "--output", out)
    change_checkpoint(out / "best.safetensors", {}, ["fc.weight"]) # what is left is the bias, the log-odds of the frequencies
    data.mkdir()
    for name in ("train.txt", "test.txt"):
        first, *lines = (folder / "data" / name).read_text().splitlines()
        (data / name).write_text("\n".join([first, *(line + " " for line in lines)]) + "\n")
    found = []
    for options in ([], ["--propensity-a", 0.6], ["--propensity-b", 2.6]):
        (line,) = train(folder, "-e", "--resume", out / "best.safetensors", *options, data="spaces")
        found.append(line)
        if not importlib.util.find_spec("scipy"):
            print("left out: the measures of baselines.py, without SciPy")
            continue
        done = run_script(BASELINES, "--only", "frequency", *options, data)
        measures = {name.replace("@", "").lower(): float(value) for name, value in re.findall(r"(\w+@\d) ([\d.]+)", done.stdout)}
        check(done.returncode == 0 and len(measures) == 9, f"frequency: {done}")
        for name, value in measures.items(): # of two digits
            check(abs(line[name] - value) < 0.0051, f"{options}: {name} of frequency is {value}, that of the program {line[name]}")
    usual, *others = found
    for line in others:
        check(line["p5"] == usual["p5"] and line["r5"] == usual["r5"] and abs(line["psp5"] - usual["psp5"]) > 0.01, f"other propensities: {usual}, {line}")


def check_batch_sizes(folder, one):
    """Two epochs with batches of 12, then two with 24: their learning rates are those of a run with 24 from the beginning."""
    points = sum(line["points"] for line in one if line["epoch"] == 0)
    saved = ["--epochs", 4, "--output", folder / "sizes"]
    first = train(folder, *saved, "-b", 12, "--steps", 2 * -(-points // 12))
    check(first[-1]["epoch"] == 1, f"two epochs of {points} points: {first[-1]}")
    found, whole = (train(folder, *options) for options in ([*saved, "--resume", "auto"], ["--epochs", 4]))
    rates = [[line["lr"] for line in lines if line["epoch"] >= 2 and not line.get("validation")] for lines in (found, whole)]
    check(len(rates[0]) == 18 and len(set(rates[0])) == 18, f"18 steps of two epochs: {rates[0]}")
    compare("learning rates after another batch size", *rates, 0)


def check_head_options(folder):
    lines = train(folder, "--head-dtype", "bfloat16", "--head-optimizer", "rowwise-adagrad", "--head-lr", "0.05", "--enable-model-parallel",
                  ranks=2)
    check(lines[-1]["p1"] > 50, f"bfloat16: {lines[-1]}")


def check_parallel_options(folder, one):
    """ZeRO, mixed precision, skipped steps, saves in the background."""
    expected, memory = numbers(one), []
    for options in (["--enable-zero-optim", 3, "--bucket-mib", "0.01"], ["--enable-zero-optim", 2, "--enable-model-parallel"],
                    ["--non-finite", "skip", "--check-replicas", 5, "--head-dtype", "same"]):
        lines = train(folder, *options, ranks=2)
        compare(f"2 ranks {options}", numbers(lines), expected)
        memory.append(lines[-2]["memory_mib"]["current"])
    check(memory[0] < 0.6 * memory[2], f"the memory is {memory}")
    half = train(folder, "--enable-amp-mode", "fp16", "--save-async", "--output", folder / "half", "--save-every", 5,
                 "--enable-model-parallel", ranks=2)
    compare("float16", numbers(half)[:9], expected[:9], 1e-3)
    check(half[0]["grad_scale"] == 65536 and half[-1]["p1"] > 60, f"float16: {half[0]}, {half[-1]}")
    made = folder / "half/checkpoint.safetensors" # its gradient scaler is left out in a run without one, and nothing else is
    other = shutil.copy(made, folder / "other.safetensors")
    change_checkpoint(other, {}, added=["another"])
    check(len(train(folder, "--resume", made, "--epochs", 9)) > 0, "float16 goes on in float32")
    for options in ([], ["--enable-amp-mode", "fp16"]):
        train(folder, "--resume", other, "--epochs", 9, *options, expect='"another"')
    again = train(folder, "-e", "--resume", folder / "half/best.safetensors")
    compare("-e of float16", [again[0]["p1"]], [half[-1]["p1"]], 0.05)
    first, second = (train(folder, *options) for options in (["--steps", 3], ["--steps", 3, "--lr", "1e30", "--optimizer", "sgd",
                                                                               "--non-finite", "skip"]))
    check(first[2]["left_out"] is False and second[2]["left_out"] is True and second[2]["loss"] is None,
          f"skipped: {first}, {second}")


def check_rates(folder):
    """The schedules, at the last layer's own rate too, and the weight decay of biases."""
    short, steps = ["--epochs", 2, "--val-interval", 0], 18
    for options, rate in ((["polynomial", "--lr-power", 2, "--lr-min", 0.003], lambda step: 0.003 + 0.027 * (1 - step / steps) ** 2),
                          (["cosine", "--lr-min", 0.003], lambda step: 0.003 + 0.027 * (1 + math.cos(math.pi * step / steps)) / 2),
                          (["step", "--lr-step-size", 1, "--lr-gamma", 0.5], lambda step: 0.03 * 0.5 ** (step // 9)),
                          (["constant", "--warmup-steps", 4], lambda step: 0.03 * min(1, (step + 1) / 4)),
                          (["constant", "--warmup-epochs", 0.5], lambda step: 0.03 * min(1, (step + 1) / 5))): # of 4.5 steps
        lines = train(folder, *short, "--head-lr", 0.06, "--lr-schedule", *options)
        expected = [rate(step) for step in range(steps)]
        compare(f"rates of {options}", [line["lr"] for line in lines], expected, 1e-9)
        compare(f"the head's rates of {options}", [line["head_lr"] for line in lines], [2 * lr for lr in expected], 1e-9)
    done = TRAINER.run(*RUN, *short, "--head-lr", 0.06, "--steps", 1, folder / "data")
    check("  lr 0.03 and 0.06\n" in done.stdout, f"{done}")
    lines = [train(folder, *short, "--wd", 0.5, *options) for options in ([], ["--decay-all"])]
    check("head_lr" not in lines[0][0], f"{lines[0][0]}")
    check(lines[0][0]["loss"] == lines[1][0]["loss"] and lines[0][5]["loss"] != lines[1][5]["loss"], "--decay-all changes nothing")
    for options, text in ((["--momentum", 0.5], "--momentum needs --optimizer sgd or lars; leave it out"),
                          (["--nesterov"], "--nesterov needs --optimizer sgd or lars"),
                          (["--lr-step-size", 2], "--lr-step-size needs --lr-schedule step"),
                          (["--lr-gamma", 0.5], "--lr-gamma needs --lr-schedule step"),
                          (["--lr-min", 0.1, "--lr-schedule", "constant"], "--lr-min needs --lr-schedule cosine or polynomial"),
                          (["--lr-power", 2], "--lr-power needs --lr-schedule polynomial"), (["--decay-all"], "--decay-all needs a --wd above 0")):
        train(folder, *options, expect=text)
    check(len(train(folder, *short, "--head-optimizer", "momentum", "--momentum", 0.5)) == steps, "the head's momentum")


def check_interrupted(folder):
    """A run of --steps that was interrupted in its last step, the last one of an epoch: the one that goes on validates."""
    out = ["--output", folder / "last", "--steps", 9, "--val-interval", 1]
    lines = train(folder, *out)
    check(len(lines) == 10 and lines[-1].get("validation"), f"9 steps: {lines}")
    change_checkpoint(folder / "last/checkpoint.safetensors", {"epoch": "0", "epoch_step": "9", "best_p1": "-1"})
    rest = train(folder, *out, "--resume", "auto")
    check([line.get("validation") for line in rest] == [True] and rest[0]["p1"] == lines[-1]["p1"], f"goes on with {rest}")
    rest = train(folder, *out, "--resume", "auto")
    check(not rest, f"goes on again with {rest}")


def check_errors(folder):
    train(folder, "--keep", 1, expect="--keep 1: the one before must stay")
    for option in (["--keep", 2], ["--save-every", 5], ["--save-async"]):
        train(folder, *option, expect=f"{option[0]} needs --output")
    for option, value, text in (("--epochs", 10000000000, "whole number from 1 to 1000000000"), ("--lr", -1, "number of at least 0"),
                                ("--steps", -1, "whole number of at least 0"), ("--seed", 2**63, f"whole number from 0 to {2**53}"),
                                ("--momentum", 2, "number from 0 to 0.9999")):
        train(folder, option, value, expect=f'{option}: "{value}" is not a {text}')
    train(folder, "--model-parallel-size", 2, expect="--model-parallel-size needs --enable-model-parallel")
    train(folder, "--loss-every", 2, "--non-finite", "skip", expect="--non-finite skip reads the loss of each step")
    train(folder, "-e", expect="--evaluate needs a model")
    done = subprocess.run(["sh", "-c", 'ulimit -f 1 && exec "$@"', "sh", TRAINER.program, *RUN, "--metrics", folder / "limited", folder / "data"],
                          capture_output=True, text=True, timeout=LIMIT)
    check(done.returncode == 1 and "--metrics" in done.stderr and "File too large" in done.stderr, f"a limit on files: {done}")
    train(folder, "--lr", "1e30", "--optimizer", "sgd", expect="take a smaller --lr")
    (folder / "data/test.txt").write_text("1 255 30\n1 1:1\n")
    train(folder, ranks=2, expect="features and")
    help_text = TRAINER.run("--help")
    check(help_text.returncode == 0 and "--tensorboard DIR" in help_text.stdout and "(0.001)" in help_text.stdout, f"{help_text}")


def check_best_first(folder):
    """The checkpoint, which says what the best result is, is written after the files that have it: a run that is killed between them
    validates again, and writes them."""
    out, names = folder / "killed", ("best.safetensors", "model.safetensors", "checkpoint.safetensors")
    options = ["--output", out, "--steps", 9, "--val-interval", 1, "--resume", "auto"]
    for background in ([], ["--save-async"]):
        for name in names[:2]:
            (out / name).mkdir(parents=True) # in the way
            train(folder, *options, *background, expect="is not a regular file")
            check(not (out / names[2]).exists(), f"{background}: a checkpoint without {name}")
            (out / name).rmdir()
        train(folder, *options, *background)
        times = [(out / name).stat().st_ctime_ns for name in names]
        check(times == sorted(times), f"{background}: the files' times are {times}")
        shutil.rmtree(out)


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        check_prepare(folder)
        make_data(folder)
        check_prepare_options(folder)
        one = train(folder)
        check_ranks(folder, one)
        check_resume(folder, one)
        check_other_folder(folder)
        check_diverged(folder)
        check_data(folder)
        check_measures(folder)
        check_batch_sizes(folder, one)
        check_head_options(folder)
        check_parallel_options(folder, one)
        check_interrupted(folder)
        check_best_first(folder)
        check_rates(folder)
        check_errors(folder)
    return report()


if __name__ == "__main__":
    sys.exit(main())
