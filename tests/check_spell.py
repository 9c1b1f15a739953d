"""check_spell.py SHARDRUN SPELL PREPARE: the words that prepare makes, training on one rank and on several, resuming on another
number of ranks, sampled classes and bfloat16, corrections of standard input, errors, and the baselines that are installed."""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

SHARDRUN, SPELL, PREPARE = sys.argv[1:]
SCRIPTS = pathlib.Path(PREPARE).resolve().parent
LIMIT = 120 * float(os.environ.get("CK_TIMEOUT_MULTIPLIER", "1"))
MODEL = "--features 512 --dim 16 --channels 8 --scale 12".split()
RUN = [*MODEL, *"--pairs 1000 --epochs 3 --tied-epochs 1 -b 96 --lr 0.01 --seed 5".split()]
STEPS = 11 # of an epoch
TOLERANCE = 1e-5 # of losses on several ranks; one step's is about 1e-7, and Adam divides by small numbers
STEMS = "account advert believ calend commit differ embarr familiar govern harmon independ knowledg librar maintain neighbor".split()
ENDS = "s ed ing er able ation".split()

LISTS = ("Zebra\nabc\nab\nÀpropos\nab\n\ntwo words\n" + "x" * 64 + "\n", "abc's\nzebra\nabcd\n'n'\n")
INDEX = """Package: one
Description: an abc, ABC and zebra's abcd
 a zebra
Description-md5: abcd
Other: zebra

Package: two
Description: zebra
"""
CODESPELL = "abcc->abc\nzbera->Zebra\nabx->abc, ab,\nnone->nowhere\nap->à propos\nÀpropo->àpropos\n"
FAILED = []


def check(condition, text):
    if not condition:
        FAILED.append(text)


def run(*arguments, ranks=1, text=""):
    launcher = [SHARDRUN, "-n", str(ranks)] if ranks > 1 else []
    return subprocess.run([*launcher, SPELL, *map(str, arguments)], capture_output=True, text=True, timeout=LIMIT, input=text,
                          encoding="utf-8", env=dict(os.environ, OMP_NUM_THREADS="1"))


def prepare(*arguments):
    return subprocess.run([sys.executable, PREPARE, *map(str, arguments)], capture_output=True, text=True, timeout=LIMIT)


def train(folder, *options, ranks=1, expect=None):
    """The lines of --metrics; with `expect` nothing but whether the run fails with that text."""
    metrics = folder / "metrics.json"
    metrics.unlink(missing_ok=True)
    done = run(*RUN, "--metrics", metrics, *options, folder / "data", ranks=ranks)
    output = done.stdout + done.stderr
    if expect:
        check(done.returncode == 1 and output.count(" error: ") == 1 and expect in output, f"{options}: not \"{expect}\": {output}")
        return None
    check(done.returncode == 0, f"{options} on {ranks} ranks: {output}")
    return [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []


def numbers(lines):
    return [line["top1" if line.get("validation") else "loss"] for line in lines]


def compare(what, found, expected, tolerance=TOLERANCE):
    same = len(found) == len(expected) and all(abs(a - b) <= tolerance * (1 + abs(b)) for a, b in zip(found, expected))
    check(same, f"{what}: {found}, not {expected}")


def check_prepare(folder):
    for number, text in enumerate(LISTS):
        (folder / f"list{number}").write_text(text, encoding="utf-8")
    (folder / "index").write_text(INDEX)
    (folder / "codespell").write_text(CODESPELL, encoding="utf-8")
    files = ["--lists", folder / "list0", folder / "list1", "--codespell", folder / "codespell", "--index", folder / "index"]
    done = prepare(*files, folder / "exact")
    check(done.returncode == 0 and "7 distinct words, 7 kept; 5 of them counted in the text, 3 distinct" in done.stdout, f"{done}")
    check("4 single-word misspellings, 3 with a correction in the dictionary (75.00 %)" in done.stdout, f"{done}")
    words = (folder / "exact/words.txt").read_text(encoding="utf-8")
    check(words == "'n' 0\nab 0\nabc 2\nabc's 0\nabcd 1\nzebra 2\nàpropos 0\n", f"words.txt is {words!r}")
    test = (folder / "exact/test.txt").read_text(encoding="utf-8")
    check(test == "abcc abc\nzbera zebra\nàpropo àpropos\n", f"test.txt is {test!r}")
    done = prepare(*files, "--words", 5, "--text", folder / "list1", "--", folder / "exact")
    words = (folder / "exact/words.txt").read_text(encoding="utf-8")
    check(words == "ab 0\nabc 2\nabc's 1\nabcd 2\nzebra 3\n", f"{done}; words.txt is {words!r}")
    done = prepare("--lists", "/dev/null", "--index", "/dev/null", folder / "none")
    check(done.returncode == 1 and "the lists have 0 words" in done.stderr, f"{done}")
    done = prepare("--words", 0, folder / "none")
    check(done.returncode == 2 and "--words: 0 is not" in done.stderr, f"{done}")


def make_data(folder):
    """Words with common stems, and misspellings with two letters exchanged."""
    words = sorted(stem + end for stem in STEMS for end in ENDS)
    (folder / "data").mkdir()
    (folder / "data/words.txt").write_text("".join(f"{word} {len(word) * 7 % 5}\n" for word in words))
    typed = [(word[:3] + word[4] + word[3] + word[5:], word) for word in words if word[3] != word[4]]
    (folder / "data/test.txt").write_text("".join(f"{one} {word}\n" for one, word in typed))


def check_ranks(folder, one):
    check(len(one) == 3 * (STEPS + 1), f"one rank: {len(one)} lines")
    if FAILED:
        return
    tied, last = one[STEPS], one[-1]
    check(tied["top1"] > 40 and last["top1"] > 60 and last["top5"] > 90, f"one rank: {tied}, {last}")
    for ranks, options in ((2, ["--enable-model-parallel"]), (2, []), (4, ["--enable-model-parallel", "--model-parallel-size", 2])):
        compare(f"{ranks} ranks {options}", numbers(train(folder, *options, ranks=ranks)), numbers(one))


def check_resume(folder, one):
    """Within the epoch of tied rows, and after it."""
    for step in (5, 15):
        out = folder / f"out{step}"
        saved = ["--output", out, "--keep", 2, "--save-every", 4]
        before = numbers(one)[:step + step // STEPS]
        compare(f"the first {step}", numbers(train(folder, *saved, "--steps", step)), before, 0)
        rest = train(folder, *saved, "--resume", "auto", "--enable-model-parallel", ranks=2)
        check(rest[0]["step"] == step + 1, f"goes on with step {rest[0]['step']}")
        compare(f"the rest after {step} on two ranks", numbers(rest), numbers(one)[len(before):])
    again = train(folder, "-e", "--resume", out / "best.safetensors")
    best = max((line for line in one if line.get("validation")), key=lambda line: line["top1"])
    compare("-e", [again[0]["top1"], again[0]["top5"]], [best["top1"], best["top5"]])
    newest = max(out.glob("step-*/checkpoint.safetensors"))
    for option, text in ((["--dim", 8], "its dim is 16, not 8; start with the run's own --dim"),
                         (["--scale", 10], "its scale is 12, not 10; start with the run's own --scale"),
                         (["--tied-epochs", 2], "its tied_epochs is 1, not 2; start with the run's own --tied-epochs")):
        train(folder, *option, "--resume", newest, expect=text)
    return newest


def check_correct(folder, model):
    correct = [*MODEL, "--resume", model, folder / "data", "--correct"]
    done = run(*correct, "-k", 3, text="Beleived  librarer\n\ncommited\r\n" + 300 * "x" + "\ngovernation")
    lines = [line.split("\t") for line in done.stdout.splitlines() if "\t" in line]
    check(done.returncode == 0 and [line[0] for line in lines] == ["beleived", "librarer", "commited", "governation"], f"{done}")
    check([line[1].split(" ")[0] for line in lines] == ["believed", "librarer", "commited", "governation"], f"{lines}")
    check(all(len(line) == 4 for line in lines), f"-k 3: {lines}")
    check("a word of more than 255 bytes" in done.stderr and "4 words, " in done.stderr, f"{done.stderr}")
    for line in lines:
        chances = [float(one.split(" ")[1]) for one in line[1:]]
        check(chances == sorted(chances, reverse=True) and 0 < sum(chances) < 1.0002, f"{line}")
    done = run(*correct, "-k", 1000, text="governs\n") # all classes: the chances are those of a softmax
    chances = [float(one.split(" ")[1]) for one in done.stdout.splitlines()[-1].split("\t")[1:]]
    check(len(chances) == len(STEMS) * len(ENDS) and abs(sum(chances) - 1) < 0.01, f"{len(chances)} chances, sum {sum(chances)}")
    done = run(*correct, ranks=2)
    check(done.returncode == 1 and "--correct is for one rank" in done.stderr, f"{done}")
    return lines


def check_head_options(folder):
    for options in (["--head-dtype", "bfloat16", "--head-optimizer", "rowwise-adagrad", "--head-lr", "0.05"], ["--sample-rate", 0.2]):
        lines = train(folder, *options, "--enable-model-parallel", ranks=2)
        check(lines[-1]["top1"] > 50, f"{options}: {lines[-1]}")
    one, two = train(folder, "--sample-rate", 0.2), train(folder, "--sample-rate", 0.2, "--enable-model-parallel", ranks=2)
    compare("a sample on two ranks", numbers(two), numbers(one))
    untied = train(folder, "--tied-epochs", 0, "--epochs", 1)
    check(untied[-1]["top1"] > 40, f"rows of the first encoder: {untied[-1]}")


def check_scripts(folder):
    for name in ("hunspell", "aspell"):
        done = subprocess.run([sys.executable, SCRIPTS / "baselines.py", "--only", name, folder / "data"], capture_output=True, text=True,
                              timeout=LIMIT)
        found = re.fullmatch(rf"{name} +top-1 (\S+)  top-5 (\S+)  \((\d+) words, \S+ words/s\)\n", done.stdout)
        right = float(found[1]) > 60 and float(found[2]) > 80 if found else done.stdout == f"{name}: not installed\n"
        check(done.returncode == 0 and right, f"{name}: {done}")
    done = subprocess.run([SCRIPTS / "run", "--help"], capture_output=True, text=True, timeout=LIMIT)
    check(done.returncode == 0 and "--quick: the 100,000 most useful words" in done.stdout, f"{done}")


def check_errors(folder):
    train(folder, "--keep", 1, expect="--keep 1: the one before must stay")
    train(folder, "-e", expect="--evaluate needs a model")
    train(folder, "-c", expect="--correct needs a model")
    train(folder, "-c", "-e", expect="--evaluate or --correct, not both")
    train(folder, "--lr", "1e30", "--optimizer", "sgd", "--tied-epochs", 0, expect="take a smaller --lr")
    (folder / "data/test.txt").write_text("acounts nowhere\n")
    train(folder, ranks=2, expect="its correction is not in words.txt")
    (folder / "data/test.txt").unlink()
    lines = train(folder, "--steps", 2)
    check(len(lines) == 2, f"without a test: {lines}")
    help_text = run("--help")
    check(help_text.returncode == 0 and "--tensorboard DIR" in help_text.stdout and "(0.008)" in help_text.stdout, f"{help_text}")


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        check_prepare(folder)
        make_data(folder)
        one = train(folder)
        check_ranks(folder, one)
        if FAILED: # nothing that follows can be right
            sys.exit("\n".join(FAILED))
        check_correct(folder, check_resume(folder, one))
        check_head_options(folder)
        check_scripts(folder)
        check_errors(folder)
    print("\n".join(FAILED) or "passed")
    return 1 if FAILED else 0


if __name__ == "__main__":
    sys.exit(main())
