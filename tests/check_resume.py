"""Whether a checkpoint whose metadata or counters were changed is refused with one clear error, or gone
on with as it should be: each field in turn gets many values. A crash, a run that does not end, an error
that names neither the field nor the file, and other losses without an error are failures.

Usage: check_resume.py SHARDRUN IMAGENET.
"""
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

LIMIT = 60  # seconds of a run that takes a fraction of one
RUN = ("-a resnet18 --stem small --width 8 --image-size 8 --synthetic 34 --num-classes 3 -b 6 --lr 1e-4 -j 1 --seed 7 --optimizer adam "
       "--enable-amp-mode=fp16 --val-interval 0 --epochs 3").split()
# The checkpoint: step 8 of 6 in each epoch; the run that goes on ends with step 10.
SAVED = {"epoch": 1, "epoch_step": 2, "step": 8}
INT64_MAX, INT64_MIN = 2**63 - 1, -2**63
INTEGERS = [-1, -5, 7, 99, 2**31, 2**53, 2**53 + 2, INT64_MAX, INT64_MIN, 2**63, 10**30]
TEXTS = ["", "x", "nan", "NaN", "inf", "-inf", "1e3", "2.0", "0x2", "+2", " 2", "2 ", "02", "-0", "null", "2\n"]
# Values that are as good as the right one: what is done with them does not change the run.
HARMLESS = {
    "best_top1": {"-1", "7", "99", "-0", "2.0", "0x2", "+2", "02"},
    "random_seed": {str(value) for value in INTEGERS if INT64_MIN <= value <= INT64_MAX},
    "random_draw": {"7", "99", str(2**31), str(2**53)},
}
# Of those another value is reported at most.
NOT_READ = {"format", "image_size", "validation_crop", "epochs", "lr", "lr_schedule", "head_lr", "weight_decay", "clip_grad"}
# In range, and nothing in the file says otherwise: a run that goes on from elsewhere, which must end, too.
ELSEWHERE = {("step", str(value)) for value in (7, 99, 2**31, 2**53)}
MISSING = None


class Checkpoint:
    """A file without checksums whose header has room, to be changed in place."""

    def __init__(self, path):
        data = path.read_bytes()
        (size,) = struct.unpack_from("<Q", data)
        self.path, self.room = path, size + 4096
        self.header = json.loads(data[8:8 + size])
        for key in ("crc64.header", "crc64.tensors"):
            del self.header["__metadata__"][key]
        self.write(self.header, data[8 + size:])

    def write(self, header, data=None):
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        assert len(text) <= self.room
        mode = "r+b" if data is None else "wb"
        with open(self.path, mode) as file:
            file.write(struct.pack("<Q", self.room) + text.ljust(self.room))
            if data is not None:
                file.write(data)

    def change(self, field, value):
        header = dict(self.header, __metadata__=dict(self.header["__metadata__"]))
        if value is MISSING:
            del header["__metadata__"][field]
        else:
            header["__metadata__"][field] = value
        self.write(header)

    def exchange(self, tensor, data):
        """Puts data there; what was there before."""
        begin, end = self.header[tensor]["data_offsets"]
        assert len(data) == end - begin, (tensor, begin, end)
        with open(self.path, "r+b") as file:
            file.seek(8 + self.room + begin)
            before = file.read(end - begin)
            file.seek(8 + self.room + begin)
            file.write(data)
        return before


class Trainer:
    def __init__(self, shardrun, imagenet, folder):
        self.shardrun, self.imagenet, self.folder = shardrun, imagenet, folder

    def run(self, *options, ranks=1):
        """Exit code, what was printed, losses by step."""
        launcher = [self.shardrun, "-n", str(ranks)] if ranks > 1 else []
        metrics = self.folder / "metrics.json"
        metrics.unlink(missing_ok=True)
        command = [*launcher, self.imagenet, *RUN, "--metrics", str(metrics), *options]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, errors="replace",
                                  env=dict(os.environ, OMP_NUM_THREADS="1"))
        except subprocess.TimeoutExpired:
            return "it does not end", "", []
        lines = [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []
        return done.returncode, done.stdout + done.stderr, [(line["step"], line["loss"]) for line in lines]


def problem_of(result, field, value, right, name):
    code, text, losses = result
    errors = [line for line in text.splitlines() if " error: " in line]
    if code == 0:
        if field in NOT_READ or str(value) in HARMLESS.get(field, ()):
            return None if losses == right else f"other losses: {losses}"
        return None if (field, str(value)) in ELSEWHERE or losses == right else f"taken, with other losses: {losses}"
    if code != 1:
        return f"ends with {code}: {text[-300:]}"
    if len(errors) != 1 or field not in errors[0] or name not in errors[0]:
        return f"no error that names the field and the file: {text[-300:]}"
    return None


def check_metadata(trainer, checkpoint, resume, right):
    problems, tried = [], 0
    for field, saved in checkpoint.header["__metadata__"].items():
        values = {"", "x", "-1"} if field in NOT_READ else {str(value) for value in INTEGERS} | set(TEXTS)
        for value in sorted(values - {saved}) + [MISSING]:
            checkpoint.change(field, value)
            ranks = 2 if tried % 40 == 39 else 1
            problem = problem_of(trainer.run(*resume, ranks=ranks), field, value, right[ranks], checkpoint.path.name)
            tried += 1
            if problem:
                problems.append(f"{field} = {value!r}, {ranks} ranks: {problem}")
    checkpoint.write(checkpoint.header)
    return problems, tried


def check_counters(trainer, checkpoint, resume, right):
    counters = {name: [struct.pack("<q", value) for value in (-1, INT64_MIN, INT64_MAX, 2**53 + 2)]
                for name in ("optimizer.conv1.weight.step", "optimizer.fc.bias.step", "bn1.num_batches_tracked",
                             "scaler.growth_tracker")}
    counters["scaler.scale"] = [struct.pack("<f", value) for value in (0.0, -1.0, float("nan"), float("inf"), float("-inf"))]
    problems, tried = [], 0
    for name, values in counters.items():
        for value in values:
            before = checkpoint.exchange(name, value)
            problem = problem_of(trainer.run(*resume), name, None, right[1], checkpoint.path.name)
            checkpoint.exchange(name, before)
            tried += 1
            if problem:
                problems.append(f"{name} = {value!r}: {problem}")
    return problems, tried


def main():
    shardrun, imagenet = sys.argv[1:]
    with tempfile.TemporaryDirectory() as directory:
        folder = pathlib.Path(directory)
        trainer = Trainer(shardrun, imagenet, folder)
        code, text, _ = trainer.run("--steps", "8", "--output", str(folder / "out"))
        assert code == 0, text
        checkpoint = Checkpoint(folder / "out" / "checkpoint.safetensors")
        metadata = checkpoint.header["__metadata__"]
        assert {name: int(metadata[name]) for name in SAVED} == SAVED, metadata
        resume = ["--steps", "10", "--resume", str(checkpoint.path)]
        right = {}  # losses, by the number of ranks: each rank normalizes its own images
        for ranks in (1, 2):
            code, text, right[ranks] = trainer.run(*resume, ranks=ranks)
            assert code == 0 and [step for step, _ in right[ranks]] == [9, 10], text
        problems, tried = check_metadata(trainer, checkpoint, resume, right)
        more, counters = check_counters(trainer, checkpoint, resume, right)
        assert trainer.run(*resume)[2] == right[1], "the checkpoint was not put back"
    problems += more
    print("\n".join(problems) if problems else f"{tried} changes of metadata and {counters} of counters: each is an error or harmless")
    print(f"cases: {tried + counters}")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
