"""Whether the trainer goes on to the bit from the checkpoint of each step of a run: on images that are cropped and mirrored at
random, the losses of the steps that are left and the checkpoint after the last one are compared with those of the run that was
not stopped.

Usage: check_resume_steps.py SHARDRUN IMAGENET some|all. some: after some of the steps.
"""
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import zlib

LIMIT = 300  # seconds of a run that takes some
STEPS = 50
RUN = (f"-a resnet18 --stem small --width 8 --image-size 16 -b 6 -j 2 --seed 7 --lr 1e-3 --epochs 20 --steps {STEPS} "
       "--lr-schedule cosine --warmup-steps 7 --enable-amp-mode=fp16 --label-smoothing 0.1 --clip-grad 1 -p 50").split()
# Ranks, options, and the first of the steps after which `some` resumes.
CASES = [
    (1, "--accumulate 2 --nesterov", 4),
    (2, "--optimizer adamw --enable-model-parallel --sample-rate 0.3 --head-dtype bfloat16 --head-optimizer rowwise-adagrad "
        "--head-lr 0.01 --non-finite skip", 11),
    (4, "--optimizer adam --enable-model-parallel --model-parallel-size 2 --enable-zero-optim=2 --sync-bn", 19),
]
STRIDE = 27  # of `some`


def write_png(path, side, seed):
    """An RGB image that depends on the seed."""
    rows = b"".join(b"\0" + bytes((x * 17 + y * (29 + 11 * seed) + 83 * c * seed) % 256 for x in range(side) for c in range(3))
                    for y in range(side))

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def write_images(folder):
    """15 images for training, so that an epoch has 3 steps, the last one with fewer images; 3 for validation."""
    for label in range(3):
        for i in range(6):
            write_png(folder / ("val" if i == 5 else "train") / f"class{label}" / f"{i}.png", 20, label * 10 + i)


class Trainer:
    def __init__(self, shardrun, imagenet, folder):
        self.shardrun, self.imagenet, self.folder = shardrun, imagenet, folder

    def run(self, ranks, name, options):
        """Writes a folder of that name. The losses by step."""
        launcher = [self.shardrun, "-n", str(ranks)] if ranks > 1 else []
        command = [*launcher, self.imagenet, *RUN, *options, "--output", name, "--save-every", "1", "--metrics", f"{name}.json", "images"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, errors="replace", cwd=self.folder,
                              env=dict(os.environ, OMP_NUM_THREADS="1"))
        if done.returncode != 0:
            sys.exit(f"ends with {done.returncode}: {' '.join(command)}\n{(done.stdout + done.stderr)[-1000:]}")
        lines = [json.loads(line) for line in (self.folder / f"{name}.json").read_text().splitlines()]
        return {line["step"]: (line["loss"], line["grad_scale"], line["left_out"]) for line in lines if not line.get("validation")}

    def checkpoint(self, name, step):
        return self.folder / name / f"step-{step:06}" / "checkpoint.safetensors"


def check_case(trainer, number, stops):
    """The problems of the runs that are resumed after these steps."""
    ranks, words, _ = CASES[number]
    options, whole, problems = words.split(), f"whole{number}", []
    losses = trainer.run(ranks, whole, [*options, "--keep", str(2 * STEPS)])
    assert sorted(losses) == list(range(1, STEPS + 1)), losses
    last = trainer.checkpoint(whole, STEPS).read_bytes()
    for stop in stops:
        name = f"resumed{number}-{stop}"
        found = trainer.run(ranks, name, [*options, "--keep", "2", "--resume", str(trainer.checkpoint(whole, stop))])
        expected = {step: value for step, value in losses.items() if step > stop}
        if found != expected:
            step = min(step for step in {*found, *expected} if found.get(step) != expected.get(step))
            problems.append(f"{ranks} ranks, {words}: after step {stop}, step {step} is {found.get(step)}, not {expected.get(step)}")
        elif trainer.checkpoint(name, STEPS).read_bytes() != last:
            problems.append(f"{ranks} ranks, {words}: after step {stop}, the last checkpoint has other bytes")
    return problems


def main():
    shardrun, imagenet, extent = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2]), sys.argv[3]
    problems, tried = [], 0
    with tempfile.TemporaryDirectory() as directory:
        trainer = Trainer(shardrun, imagenet, pathlib.Path(directory))
        write_images(trainer.folder / "images")
        for number, (_, _, first) in enumerate(CASES):
            stops = range(1, STEPS) if extent == "all" else range(first, STEPS, STRIDE)
            problems += check_case(trainer, number, stops)
            tried += len(stops)
    print("\n".join([*problems, f"cases: {tried}"]))
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
