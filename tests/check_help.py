"""check_help.py PROGRAM...: --help of the programs under projects/ has one style, an option that several programs have means the
same in each, and no option of imagenet that was released is gone."""
import os
import pathlib
import re
import subprocess
import sys

LIMIT = 60 * float(os.environ.get("CK_TIMEOUT_MULTIPLIER", "1"))
OPTION = re.compile(r"  (?:-\w,| {3}) --(\S+)(?: (\S+))?(?:$| {2,})")
SAMPLES = re.compile(r"\b(images|points|blocks|pairs)\b")
# Options of one program where those of the same name in others mean something else: zero is no trainer, and mingpt draws from the top-k, and
# arcface needs all images of a validation set, of which it makes pairs.
# Those of the section "Model" are each program's own.
OWN = {("zero", "steps"), ("zero", "memory-report"), ("zero", "layers"), ("zero", "width"), ("spell", "top-k"),
       ("arcface", "skip-bad-images")}
IMAGENET = """accumulate arch batch-size bucket-mib check-replicas clip-grad crop-scale cuda-graph device dtype enable-amp-mode
enable-model-parallel enable-zero-optim epochs evaluate head head-dtype head-lr head-optimizer head-rounding head-stash help image-size keep
label-smoothing lr lr-schedule lr-step-size margin margin-scale memory-report metrics model-parallel-dim model-parallel-size momentum
nesterov no-flip non-finite num-classes optimizer output pretrained pretrained-skip print-freq resume same-batch-in-group sample-rate
save-async save-every seed shift skip-bad-images stem steps sync-bn synthetic tensorboard val-interval warmup-epochs warmup-steps wd width
workers""".split()
# Names that other programs have for an option, the word that shows that they are read, and the name in the error.
ALSO = {"imagenet": [("learning-rate", "lr"), ("weight-decay", "wd")], "debs": [("learning-rate", "lr"), ("weight-decay", "wd")],
        "mingpt": [("learning-rate", "lr"), ("weight-decay", "wd")], "spell": [("learning-rate", "lr"), ("weight-decay", "wd")]}
FAILED = []


def check(condition, text):
    if not condition:
        FAILED.append(text)


def run(program, *options):
    return subprocess.run([program, *options], capture_output=True, text=True, timeout=LIMIT)


def read_help(program):
    """The options' arguments and texts, without defaults and the samples' name; those of the model apart."""
    name = pathlib.Path(program).name
    done = run(program, "--help")
    check(done.returncode == 0 and not done.stderr, f"{name} --help: {done}")
    check(run(program, "-h").stdout == done.stdout, f"{name} -h is not --help")
    lines = done.stdout.splitlines()
    check(re.match(rf"Usage: {name} \[options\]", lines[0]) and re.match(rf"  or:  shardrun -n \d {name} ", lines[1]) and not lines[2],
          f"{name}: begins with {lines[:3]}")
    check("Defaults are in parentheses." in re.sub(r"\s+", " ", done.stdout), f"{name}: nothing about defaults")
    found, own, current, heading = {}, set(), None, ""
    for line in lines:
        check(len(line) <= 118, f"{name}: a line of {len(line)} characters: {line}")
        option = OPTION.match(line)
        if option:
            current = option.group(1)
            own |= {current} if heading == "Model:" else set()
            check(current not in found, f"{name}: --{current} is there twice")
            found[current] = (option.group(2), line[32:].strip())
        elif line.startswith(" " * 32) and current:
            found[current] = (found[current][0], f"{found[current][1]} {line.strip()}".strip())
        elif line.strip():
            current, heading = None, line
    for option, (_, text) in found.items():
        check(text and "%s" not in text, f"{name}: --{option} has the help \"{text}\"")
    return own, {option: (argument, SAMPLES.sub("samples", re.sub(r" \([^()]*\)$", "", text))) for option, (argument, text) in found.items()}


def main():
    programs = sys.argv[1:]
    helps = {pathlib.Path(program).name: read_help(program) for program in programs}
    meaning, shared = {}, set()
    for name, (own, options) in helps.items():
        for option, text in options.items():
            if option in own or (name, option) in OWN:
                continue
            other, known = meaning.setdefault(option, (name, text))
            shared |= {option} if other != name else set()
            check(known == text, f"--{option}: {known} in {other}, {text} in {name}")
    check("debs" not in helps or len(shared) > 30, f"only {len(shared)} options are shared: {sorted(shared)}")
    for option in IMAGENET if "imagenet" in helps else []:
        check(option in helps["imagenet"][1], f"imagenet has no --{option} any more")
    for program in programs:
        for also, option in ALSO.get(pathlib.Path(program).name, []):
            done = run(program, f"--{also}", "x")
            check(done.returncode == 1 and f'--{option}: "x" is not a number' in done.stderr, f"--{also}: {done}")
            text = helps[pathlib.Path(program).name][1][option][1]
            check(text.endswith(f"; also --{also}"), f"--{option} has the help \"{text}\"")
        for option, (argument, _) in helps[pathlib.Path(program).name][1].items():
            if argument and argument.split("|")[0] in ("TEXT", "FILE", "DIR"): # only a text may begin as an option does
                done = run(program, f"--{option}", "-5 C", "--help")
                check(done.returncode == (argument != "TEXT"), f"--{option} {argument}: {done}")
    print("\n".join(FAILED) or f"{len(shared)} options are shared by {len(helps)} programs")
    return 1 if FAILED else 0


if __name__ == "__main__":
    sys.exit(main())
