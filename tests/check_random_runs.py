"""Random runs of the trainer on several ranks against the same run in one process: number of ranks, launcher,
split of the last layer, data parallel, ZeRO, mixed precision, accumulation, optimizers, clipping, classes,
uneven tails, options of the last layer, and resuming on other ranks. A run that does not end, fails where one process does not, leaves a
temporary file, or whose losses differ, is a failure.

Usage: check_random_runs.py SHARDRUN IMAGENET [--trials N] [--seed N] [--mpi openmpi,mpich]. The same seed
makes the same trials. Without --mpi all ranks are started by SHARDRUN.
"""
import argparse
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile

LIMIT = 300  # seconds of a run that takes some
# Of a loss, relative: what rounding makes of 5 steps.
TOLERANCE = {"float64": 1e-7, "float32": 2e-4, "bf16": 8e-2, "fp16": 1e-2}
# Images that go through the model together, by --image-size. At 8 pixels the last feature map has one: a batch norm
# over two values makes +1 and -1 of them, whatever they are, and its gradient divides by their difference. That
# multiplies rounding, 2e-6 of a loss in float64, and says nothing about the split.
SMALLEST_PART = {8: 3, 9: 2, 16: 2}
LAUNCHERS = {"openmpi": ["mpirun.openmpi", "--oversubscribe"], "mpich": ["mpiexec.mpich"]}
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "SHARD_TIMEOUT": "120", "OMPI_ALLOW_RUN_AS_ROOT": "1",
               "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
               "OMPI_MCA_btl_vader_single_copy_mechanism": "none"}


def common_options(rng):
    """What one process and several have in common, and the precision, a key of TOLERANCE."""
    dtype = rng.choice(["float64", "float64", "float64", "float32"])
    amp = rng.choice(["none", "bf16", "fp16"]) if dtype == "float32" else "none"
    parts, size = rng.choice([1, 1, 2, 3, 4]), rng.choice([8, 9, 16])
    part = rng.randint(SMALLEST_PART[size], 6)
    batch = parts * part
    # No part of the last batch may be a pair, where that is none for a part. Of one image, one process refuses it.
    images = rng.choice([images for images in range(batch, 4 * batch + 1) if images % part != 2 or SMALLEST_PART[size] == 2])
    options = {
        "-a": "resnet18", "--stem": "small", "--width": 8, "--image-size": size, "--synthetic": images,
        "--num-classes": rng.choice([1, 2, 3, 7, 10, 33, 64]), "-b": batch, "--accumulate": parts,
        "--optimizer": rng.choice(["sgd", "adam", "adamw", "lars", "lamb"]), "--lr": rng.choice(["1e-4", "1e-5", "1e-3"]),
        "--clip-grad": rng.choice(["0", "0", "0.05", "1", "1e9"]), "--seed": rng.randint(0, 99), "--epochs": 3,
        "--wd": rng.choice(["0", "1e-4", "0.1"]), "--label-smoothing": rng.choice(["0", "0.1", "1"]), "--dtype": dtype,
        "--enable-amp-mode": amp, "--lr-schedule": rng.choice(["step", "cosine", "polynomial", "constant"]),
        "--warmup-steps": rng.choice([0, 2]), "--val-interval": rng.choice([0, 0, 1]), "-p": 1,
    }
    words = [f"{name}={value}" if name.startswith("--") else f"{name}{value}" for name, value in options.items()]
    nesterov = rng.random() < 0.2 and options["--optimizer"] in ("sgd", "lars")
    return words + (["--nesterov"] if nesterov else []), dtype if amp == "none" else amp


def head_options(rng):
    """Options of the last layer, and whether it needs whole rows, and a classifier."""
    kind = rng.choice(["none", "none", "margin", "optimizer", "sample"])
    if kind == "margin":
        margin = rng.choice(["cosine", "arcface:0.3", "cosface:0.2", "sphereface:1.2", "combined:1,0.2,0.1"])
        return [f"--margin={margin}", "--margin-scale=4"], False, False
    if kind == "optimizer":
        optimizer = rng.choice(["sgd", "momentum", "adamw", "rowwise-adagrad", "rowwise-adam"])
        return [f"--head-optimizer={optimizer}", f"--head-lr={rng.choice(['0', '1e-4'])}"], optimizer.startswith("rowwise"), False
    if kind == "sample":  # momentum and weight decay move the other rows where ranks have replicas of the layer
        return ["--head-optimizer=sgd", "--wd=0", f"--sample-rate={rng.choice(['0.01', '0.5'])}"], True, True
    return [], False, False


class Trials:
    def __init__(self, arguments, folder):
        self.shardrun, self.imagenet, self.folder = arguments.shardrun, arguments.imagenet, folder
        self.launchers = ["shm", "shm", "shm", *(kind for kind in arguments.mpi.split(",") if kind and shutil.which(LAUNCHERS[kind][0]))]
        self.rng = random.Random(arguments.seed)
        self.worst, self.count, self.head = {}, 0, ([], False, False)

    def parallel(self):
        """A launcher, and options of how the work is split."""
        rng, (_, whole_rows, classifier) = self.rng, self.head
        ranks, kind = rng.choice([1, 2, 2, 3, 3, 4, 4]), rng.choice(self.launchers)
        options = [f"-j{rng.choice([0, 1, 2])}", f"--bucket-mib={rng.choice(['0.001', '0.1', '1', '4', '25'])}",
                   f"--enable-zero-optim={rng.choice(['none', '1', '2', '3', '3'])}"]
        if ranks > 1:
            options.append("--sync-bn")
        if rng.random() < 0.65:
            size = rng.choice([size for size in range(1, ranks + 1) if ranks % size == 0])
            dim = "column" if whole_rows else rng.choice(["row", "column"])
            options += ["--enable-model-parallel", f"--model-parallel-dim={dim}", f"--model-parallel-size={size}"]
            if dim == "column" and not classifier:
                options.append(f"--head={rng.choice(['fused', 'plain'])}")
            if rng.random() < 0.3:
                options.append("--same-batch-in-group")
        launcher = [] if ranks == 1 else [self.shardrun] if kind == "shm" else LAUNCHERS[kind]
        return ([*launcher, "-n", str(ranks)] if launcher else []), options

    def run(self, launcher, options, metrics):
        """None, or what is wrong; then the losses of the steps are in the file."""
        command = [*launcher, self.imagenet, *options, "--metrics", str(self.folder / metrics)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True, cwd=self.folder,
                              env=dict(os.environ, **ENVIRONMENT)) as process:
            try:
                text, _ = process.communicate(timeout=LIMIT)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
                return f"does not end: {' '.join(command)}"
        if process.returncode != 0:
            return f"ends with {process.returncode}: {' '.join(command)}\n{text.decode(errors='replace')[-500:]}"
        return None

    def steps_of(self, *names):
        lines = [json.loads(line) for name in names for line in (self.folder / name).read_text().splitlines()]
        return [line for line in lines if not line.get("validation")]

    def trial(self, words, precision, steps, single):
        """A run on several ranks, or two of which the second resumes the first."""
        launcher, options = self.parallel()
        if self.rng.random() < 0.45:
            saved, (launcher2, options2) = self.rng.randint(1, steps - 1), self.parallel()
            runs = [(launcher, [*words, *options, f"--steps={saved}", "--output", "out", "--overwrite"]),
                    (launcher2, [*words, *options2, f"--steps={steps}", "--resume", "out/checkpoint.safetensors"])]
        else:
            runs = [(launcher, [*words, *options, f"--steps={steps}"])]
        for i, (launcher, options) in enumerate(runs):
            (self.folder / f"run{i}.json").unlink(missing_ok=True)  # a run that resumes appends
            problem = self.run(launcher, options, f"run{i}.json")
            if problem:
                return problem
        commands = "\n".join(" ".join([*launcher, *options]) for launcher, options in runs)
        if not single:
            return None
        got = self.steps_of(*(f"run{i}.json" for i in range(len(runs))))
        if [line["step"] for line in got] != [line["step"] for line in single]:
            return f"other steps: {[line['step'] for line in got]}\n{commands}"
        difference = max(abs(a["loss"] - b["loss"]) / max(1e-3, abs(b["loss"])) for a, b in zip(got, single))
        self.worst[precision] = max(self.worst.get(precision, 0), difference)
        if not difference < TOLERANCE[precision]:
            return f"losses differ by {difference:.3g}: {[line['loss'] for line in got]}, not {[line['loss'] for line in single]}\n{commands}"
        if precision != "fp16" and [line["left_out"] for line in got] != [line["left_out"] for line in single]:
            return f"other steps are left out\n{commands}"
        left = list(self.folder.glob("out/*.tmp.*"))
        return f"left behind: {left}\n{commands}" if left else None

    def configuration(self):
        """The problems of three trials against one run of one process."""
        words, precision = common_options(self.rng)
        self.head = head_options(self.rng)
        words += self.head[0]
        steps = self.rng.randint(3, 5)
        refused = self.run([], [*words, f"--steps={steps}"], "single.json")
        if refused and not ("ends with 1:" in refused and "expected more than 1 value per channel" in refused):  # one pixel of one image
            return [f"one process: {refused}"]
        single, problems = [] if refused else self.steps_of("single.json"), []
        for _ in range(3):
            problem = self.trial(words, precision, steps, single)
            if refused and (not problem or problem.startswith("does not end")):
                problems.append(f"one process is refused, several are not: {refused}\n{problem}")
            elif problem and not refused:
                problems.append(problem)
            self.count += not refused
            shutil.rmtree(self.folder / "out", ignore_errors=True)
        return problems


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("shardrun", type=os.path.abspath)
    parser.add_argument("imagenet", type=os.path.abspath)
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--seed", type=int, default=20240)
    parser.add_argument("--mpi", default="")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        trials, problems = Trials(arguments, pathlib.Path(directory)), []
        for i in range(arguments.trials):
            found = trials.configuration()
            problems += found
            print("\n".join([f"{i + 1} of {arguments.trials}, {trials.count} compared, worst {trials.worst}", *found]), flush=True)
    if trials.count < arguments.trials:
        problems.append("nearly nothing is compared")
        print(problems[-1])
    worst = ", ".join(f"{precision} {difference:.2g}" for precision, difference in sorted(trials.worst.items()))
    print(f"seed {arguments.seed}: {trials.count} runs compared, {len(problems)} problems; worst differences: {worst}")
    print(f"cases: {trials.count}")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
