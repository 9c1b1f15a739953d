"""check_spell.py SHARDRUN SPELL PREPARE: the words that prepare makes, training on one rank and on several, resuming on another
number of ranks, sampled classes and bfloat16, ZeRO and mixed precision, corrections of standard input, errors, the whole of projects/spell/run
with a small dictionary, and the baselines that are installed.
check_spell.py SHARDRUN SPELL PREPARE baselines: hunspell and aspell, which are installed then."""
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading

from support.checkpoints import change_checkpoint
from support.trainers import FAILED, LIMIT, Trainer, check, compare, report, run_script

SHARDRUN, SPELL, PREPARE = sys.argv[1:4]
BASELINES = sys.argv[4:] == ["baselines"]
SCRIPTS = pathlib.Path(PREPARE).resolve().parent
MODEL = "--features 512 --dim 16 --channels 8 --scale 12".split()
RUN = [*MODEL, *"--pairs 1000 --epochs 3 --tied-epochs 1 -b 96 --lr 0.01 --seed 5".split()]
STEPS = 11 # of an epoch
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
CODESPELL = "abcc->abc\nabb->abc->ab\nzbera->Zebra\nabx->abc, ab,\nnone->nowhere\nap->à propos\nÀpropo->àpropos\n"
TRAINER = Trainer(SHARDRUN, SPELL)


def prepare(*arguments):
    return run_script(PREPARE, *arguments)


def train(folder, *options, ranks=1, expect=None):
    return TRAINER.train(folder / "metrics.json", *RUN, *options, folder / "data", ranks=ranks, expect=expect)


def numbers(lines):
    return [line["top1" if line.get("validation") else "loss"] for line in lines]


def check_prepare(folder):
    for number, text in enumerate(LISTS):
        (folder / f"list{number}").write_text(text, encoding="utf-8")
    (folder / "index").write_text(INDEX)
    (folder / "codespell").write_text(CODESPELL, encoding="utf-8")
    files = ["--lists", folder / "list0", folder / "list1", "--codespell", folder / "codespell", "--index", folder / "index"]
    done = prepare(*files, folder / "exact")
    check(done.returncode == 0 and "7 distinct words, 7 kept; 5 of them counted in the text, 3 distinct" in done.stdout, f"{done}")
    check("5 single-word misspellings, 3 with a correction in the dictionary (60.00 %)" in done.stdout, f"{done}")
    words = (folder / "exact/words.txt").read_text(encoding="utf-8")
    check(words == "'n' 0\nab 0\nabc 2\nabc's 0\nabcd 1\nzebra 2\nàpropos 0\n", f"words.txt is {words!r}")
    test = (folder / "exact/test.txt").read_text(encoding="utf-8")
    check(test == "abcc abc\nzbera zebra\nàpropo àpropos\n", f"test.txt is {test!r}")
    done = prepare(*files, "--words", 5, "--text", folder / "list1", "--", folder / "exact")
    words = (folder / "exact/words.txt").read_text(encoding="utf-8")
    check(words == "ab 0\nabc 2\nabc's 1\nabcd 2\nzebra 3\n", f"{done}; words.txt is {words!r}")
    done = prepare("--lists", "/dev/null", "--index", folder / "index", folder / "none")
    check(done.returncode == 1 and "the lists have 0 words" in done.stderr, f"{done}")
    done = prepare(*files, "--index", "/dev/null", folder / "none")
    check(done.returncode == 1 and "/dev/null has no packages: run `apt-get update`" in done.stderr, f"{done}")
    check(not (folder / "none").exists(), "prepare leaves files after an error")
    (folder / "other").write_text("Package: one\nDescription: nothing of it\n")
    done = prepare(*files, "--index", folder / "other", folder / "exact")
    check(done.returncode == 0 and "all counts are 0" in done.stderr, f"{done}")
    done = prepare(*files, "--no-index", "--text", folder / "list1", "--", folder / "exact")
    words = (folder / "exact/words.txt").read_text(encoding="utf-8")
    check("all counts are 0" not in done.stderr and "\nabcd 1\nzebra 1\n" in words, f"{done}; words.txt is {words!r}")
    if not subprocess.run([sys.executable, "-c", "import codespell_lib"], capture_output=True, check=False).returncode:
        return
    check((folder / "exact/test.txt").exists(), "there is no test to remove")
    done = prepare(*(files[:3] + files[5:]), folder / "exact")
    check(done.returncode == 0 and "no test: codespell" in done.stdout and not (folder / "exact/test.txt").exists(), f"an old test stays: {done}")


def check_prepare_errors(folder):
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
        if step < STEPS: # its rows are those of the encoder, which -e and --correct make anew
            within = ["--tied-epochs", 0, "--resume", out / f"step-{step:06}/checkpoint.safetensors"]
            found = train(folder, "-e", *within)[0]["top1"]
            done = TRAINER.run(*MODEL, *within, folder / "data", "--correct", text="librarer\n")
            check(found > 20 and done.stdout.startswith("librarer\tlibrarer "), f"within an epoch of tied rows: {found}, {done}")
        rest = train(folder, *saved, "--resume", "auto", "--enable-model-parallel", ranks=2)
        check(rest[0]["step"] == step + 1, f"goes on with step {rest[0]['step']}")
        compare(f"the rest after {step} on two ranks", numbers(rest), numbers(one)[len(before):])
    again = train(folder, "-e", "--resume", out / "best.safetensors")
    best = max((line for line in one if line.get("validation")), key=lambda line: line["top1"])
    compare("-e", [again[0]["top1"], again[0]["top5"]], [best["top1"], best["top5"]])
    newest = max(out.glob("step-*/checkpoint.safetensors"))
    for option, text in ((["--sample-rate", 0.9], "its sample_rate is 1, not 0.9; start with the run's own --sample-rate"),
                         (["--head-dtype", "bfloat16"], "its head_dtype is float32, not bfloat16; start with the run's own --head-dtype"),
                         (["--dim", 8], "its dim is 16, not 8; start with the run's own --dim"),
                         (["--scale", 10], "its scale is 12, not 10; start with the run's own --scale"),
                         (["--tied-epochs", 2], "its tied_epochs is 1, not 2; start with the run's own --tied-epochs")):
        train(folder, *option, "--resume", newest, expect=text)
    return newest


def check_dictionary(folder):
    """A model is of its words; their counts are those of the pairs of an epoch."""
    data, model, within = folder / "data", folder / "out15/best.safetensors", ["--output", folder / "within", "--steps", 4]
    plain = train(folder, *within)
    for option, value in (("--uniform", 0.75), ("--power", 2), ("--neighbours", 3)):
        other = train(folder, "--steps", 4, option, value)
        check(numbers(other) != numbers(plain), f"{option} changes nothing")
        train(folder, option, value, "--resume", folder / "within/checkpoint.safetensors",
              expect=f", not {value}; start with the run's own {option}")
    texts = {name: (data / name).read_text() for name in ("words.txt", "test.txt")}
    for name, text in texts.items():
        (data / name).write_text(text.replace("governed", "governee"))
        check("governed" in text, f"{name}: no word is replaced")
    for options in (["-e", "--resume", model], ["--resume", model]):
        train(folder, *options, expect="start with the run's own DIR")
    done = TRAINER.run(*MODEL, "-c", "--resume", model, data)
    check(done.returncode == 1 and "start with the run's own DIR" in done.stderr, f"other words: {done}")
    (data / "test.txt").write_text(texts["test.txt"])
    (data / "words.txt").write_text(texts["words.txt"].replace(" 1\n", " 9\n"))
    check(len(train(folder, "-e", "--resume", model)) == 1, "other counts")
    train(folder, "--resume", folder / "within/checkpoint.safetensors", expect="its counts is")
    (data / "words.txt").write_text(texts["words.txt"])


def check_interrupted(folder, one):
    """A run that was interrupted in the last step of an epoch of tied rows: the one that goes on sets the rows and validates."""
    out = ["--output", folder / "last"]
    lines = train(folder, *out, "--steps", STEPS)
    compare("the first epoch", numbers(lines), numbers(one)[:STEPS + 1], 0)
    change_checkpoint(folder / "last/checkpoint.safetensors", {"epoch": "0", "epoch_step": str(STEPS), "best_top1": "-1"}, ["fc.weight"])
    (folder / "last/best.safetensors").unlink()
    rest = train(folder, *out, "--resume", "auto", "--steps", STEPS)
    check([line.get("validation") for line in rest] == [True] and (folder / "last/best.safetensors").exists(), f"goes on with {rest}")
    compare("the end of the epoch", numbers(rest), numbers(lines)[-1:], 0)
    compare("the rest", numbers(train(folder, *out, "--resume", "auto")), numbers(one)[STEPS + 1:], 0)


def check_correct(folder, model):
    correct = [*MODEL, "--resume", model, folder / "data", "--correct"]
    done = TRAINER.run(*correct, "-k", 3, text="Beleived  librarer\n\ncommited\r\n" + 300 * "x" + "\ngovernation")
    line = r"(\w+)\t(\w+) ([01]\.\d{4})\t\w+ ([01]\.\d{4})\t\w+ ([01]\.\d{4})"
    lines = [re.fullmatch(line, one) for one in done.stdout.split("\n")[:-1]]
    check(done.returncode == 0 and all(lines) and done.stdout.endswith("\n"), f"standard output is not the words' lines: {done}")
    if not all(lines):
        return
    check([one[1] for one in lines] == ["beleived", "librarer", "commited", "governation"], f"{done}")
    check([one[2] for one in lines] == ["believed", "librarer", "commited", "governation"], f"{done}")
    check("a word of more than 255 bytes" in done.stderr and "4 words, " in done.stderr, f"{done.stderr}")
    for one in lines:
        chances = [float(chance) for chance in one.groups()[2:]]
        check(chances == sorted(chances, reverse=True) and 0 < sum(chances) < 1.0002, f"{one[0]}")
    done = TRAINER.run(*correct, "-k", 1, text="Œuvre LOUŸS GROẞE STRAẞ Ärger ÉTÉ ÷×œÿß")
    typed = [one.split("\t")[0] for one in done.stdout.splitlines()]
    check(typed == "œuvre louÿs große straß ärger été ÷×œÿß".split(), f"capitals: {done}")
    done = TRAINER.run(*correct, "-k", 1000, "--head-dtype", "same", text="governs\n") # all classes: the chances are those of a softmax
    chances = [float(one.split(" ")[1]) for one in done.stdout.rstrip("\n").split("\t")[1:]]
    check(len(chances) == len(STEMS) * len(ENDS) and abs(sum(chances) - 1) < 0.01, f"{len(chances)} chances, sum {sum(chances)}")
    done = TRAINER.run(*correct, "--metrics", folder / "of-correct")
    check(done.returncode == 1 and "leave --metrics out" in done.stderr and not (folder / "of-correct").exists(), f"{done}")
    done = TRAINER.run(*correct, ranks=2)
    check(done.returncode == 1 and "--correct is for one rank" in done.stderr, f"{done}")
    for number in (signal.SIGINT, signal.SIGTERM):
        check_signal(correct, number)


def check_signal(correct, number):
    """The first signal ends a run that waits for words."""
    with subprocess.Popen([SPELL, *map(str, correct)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        deadline = threading.Timer(LIMIT, process.kill)
        deadline.start()
        process.stdin.write(b"teh\n")
        process.stdin.flush()
        line = process.stdout.readline() # it waits for the next word now
        process.send_signal(number)
        code = process.wait()
        deadline.cancel()
    check(line.startswith(b"teh\t") and code == -number, f"signal {number}: {line}, code {code}")


def check_head_options(folder):
    for options in (["--head-dtype", "bfloat16", "--head-optimizer", "rowwise-adagrad", "--head-lr", "0.05"], ["--sample-rate", 0.2]):
        lines = train(folder, *options, "--enable-model-parallel", ranks=2)
        check(lines[-1]["top1"] > 50, f"{options}: {lines[-1]}")
    one, two = train(folder, "--sample-rate", 0.2, "--output", folder / "sampled"), train(folder, "--sample-rate", 0.2, "--enable-model-parallel", ranks=2)
    compare("a sample on two ranks", numbers(two), numbers(one))
    train(folder, "--sample-rate", 0.9, "--resume", folder / "sampled/checkpoint.safetensors",
          expect="its sample_rate is 0.2, not 0.9; start with the run's own --sample-rate")
    again = train(folder, "-e", "--resume", folder / "sampled/best.safetensors") # of all classes, whichever the rate was
    check(again[0]["top1"] == max(line["top1"] for line in one if line.get("validation")), f"-e of a sample: {again}")
    untied = train(folder, "--tied-epochs", 0, "--epochs", 1)
    check(untied[-1]["top1"] > 40, f"rows of the first encoder: {untied[-1]}")


def check_parallel_options(folder, one):
    """ZeRO, mixed precision, skipped steps, saves in the background: in epochs of tied rows and after them."""
    expected, memory = numbers(one), []
    for options in (["--enable-zero-optim", 1], ["--enable-zero-optim", 2, "--enable-model-parallel"],
                    ["--enable-zero-optim", 3, "--bucket-mib", "0.01", "--enable-model-parallel"],
                    ["--non-finite", "skip", "--check-replicas", 5, "--head-dtype", "same"]):
        lines = train(folder, *options, ranks=2)
        compare(f"2 ranks {options}", numbers(lines), expected)
        memory.append(lines[-2]["memory_mib"]["current"])
    check(memory[2] < memory[1] < memory[0] < 0.8 * memory[3], f"the memory is {memory}")
    train(folder, "--enable-zero-optim", 3, ranks=2, expect="split it over all ranks with --enable-model-parallel")
    half = train(folder, "--enable-amp-mode", "fp16", "--save-async", "--output", folder / "half", "--save-every", 5,
                 "--enable-model-parallel", ranks=2)
    compare("float16", numbers(half)[:9], expected[:9], 5e-3)
    check(half[0]["grad_scale"] == 65536 and half[-1]["top1"] > 60, f"float16: {half[0]}, {half[-1]}")
    again = train(folder, "-e", "--resume", folder / "half/best.safetensors")
    check(abs(again[0]["top1"] - max(line["top1"] for line in half if line.get("validation"))) < 5, f"-e of float16: {again}")
    for tied in (0, 1):
        lost = train(folder, "--steps", 3, "--lr", "1e30", "--optimizer", "sgd", "--non-finite", "skip", "--tied-epochs", tied)
        check(lost[0]["left_out"] is False and lost[2]["left_out"] is True and lost[2]["loss"] is None, f"skipped: {lost}")
    still = train(folder, "--steps", 3, "--lr", 0)
    check([(line["lr"], line["head_lr"]) for line in still[:3]] == [(0, 0)] * 3, f"a learning rate of 0: {still}")


def check_baselines(folder):
    for name, words in (("hunspell", 9), ("aspell", 90)):
        done = subprocess.run([sys.executable, SCRIPTS / "baselines.py", "--only", name, folder / "data"], capture_output=True, text=True,
                              timeout=LIMIT)
        found = re.search(rf"\n\| {name} \| {words} \| (\S+) \| (\S+) \| \S+ \|\n\n.*\n\| {name} \| (\S+) \| (\S+) \| (\S+) \|\n$", done.stdout,
                          re.DOTALL)
        right = float(found[1]) > 60 and float(found[2]) > 80 if found else not BASELINES and done.stdout.endswith(f"\n{name}: not installed\n")
        check(done.returncode == 0 and right, f"{name}: {done}")
    data = shutil.copytree(folder / "data", folder / "known")
    words = [line.split()[0] for line in (data / "words.txt").read_text().splitlines()]
    with open(data / "test.txt", "a") as test:
        test.write(f"{words[0]} {words[1]}\n")
    done = subprocess.run([sys.executable, SCRIPTS / "baselines.py", "--only", "aspell", data], capture_output=True, text=True, timeout=LIMIT)
    found = re.search(r"\n\| aspell \| 91 \| (\S+) \| \S+ \| \S+ \|\n\n.*\n\| aspell \| 90 \| (\S+) \| \S+ \|\n$", done.stdout, re.DOTALL)
    right = float(found[1]) < float(found[2]) if found else not BASELINES and "not installed" in done.stdout
    check(done.returncode == 0 and right, f"a typed word of the dictionary: {done}")
    done = subprocess.run([sys.executable, SCRIPTS / "baselines.py", folder / "absent"], capture_output=True, text=True, timeout=LIMIT)
    check(done.returncode == 1 and re.fullmatch(r"\S+/absent/words.txt: .*; give the folder that prepare has written\n", done.stderr), f"no words: {done}")


FAKE_PREPARE = "#!/bin/sh\nfor folder; do :; done\necho prepared >>made\ncp -r data \"$folder\"\n"


def check_run(folder):
    """projects/spell/run as it is, with a small dictionary, in a tree whose tools take these programs instead of building them."""
    tree = folder / "tree"
    venv, release = tree / "build/spell/venv/bin", tree / "build/release"
    for made in (tree / "projects/spell", tree / "tools", venv, release / "tools", release / "projects/spell"):
        made.mkdir(parents=True)
    for name in ("run", "figures.py", "baselines.py"):
        shutil.copy(SCRIPTS / name, tree / "projects/spell")
    shutil.copytree(folder / "data", tree / "data")
    for path, text in (("tools/setup", '#!/bin/sh\necho "$@" >>setup\n'), ("tools/build", '#!/bin/sh\necho "$@" >>built\n'),
                       ("build/spell/venv/bin/pip", "#!/bin/sh\n"), ("projects/spell/prepare", FAKE_PREPARE),
                       ("build/spell/venv/bin/python", '#!/bin/sh\ncase $1 in */prepare) exec sh "$@" ;; esac\nexec python3 "$@"\n')):
        (tree / path).write_text(text)
        (tree / path).chmod(0o755)
    (release / "tools/shardrun").symlink_to(os.path.abspath(SHARDRUN))
    (release / "projects/spell/spell").symlink_to(os.path.abspath(SPELL))
    done = subprocess.run([tree / "projects/spell/run", "--quick", "--dims=16"], capture_output=True, text=True, timeout=LIMIT)
    check(done.returncode == 1 and 'no option "--dims=16"' in done.stderr and not (tree / "made").exists(), f"run: a wrong option: {done}")
    options = "--quick --baselines --features 512 --dim=16 --channels 8 --scale 12 --pairs 500 --epochs 2 --tied-epochs 1 -b 96 --lr 0.01".split()
    rows = []
    for _ in range(2): # the second run goes on at the end
        done = subprocess.run([tree / "projects/spell/run", *options], capture_output=True, text=True, timeout=2 * LIMIT,
                              env=dict(os.environ, OMP_NUM_THREADS="1"))
        check(done.returncode == 0 and "definately\t" in done.stdout and "* top-1" in done.stdout, f"run: {done}")
        rows += re.findall(r"\n\| --features 512 --dim=16 [^|]+ \| 90 \| ([\d.]+) \| ([\d.]+) \| \d+ \| \d+ \| \d+ \| [\d.]+ \|\n", done.stdout)
        check("| program | typed words | top-1 % | top-5 % | words/s |" in done.stdout, f"run: no baselines: {done.stdout}")
    check(len(rows) == 2 and rows[0] == rows[1] and float(rows[0][0]) > 40, f"run: the rows are {rows} of {done}")
    check("resumed from build/spell/quick-out-features-512-dim-16-channels-8-" in done.stdout, f"run: another folder: {done.stdout}")
    check((tree / "made").read_text() == "prepared\n", "run prepares the words of an interrupted run again")
    needs_images = "-Dprojects=enabled" in (tree / "built").read_text()
    check(not needs_images or "images" in (tree / "setup").read_text(), "run: -Dprojects=enabled without the job images of tools/setup")


def check_errors(folder):
    train(folder, "--keep", 1, expect="--keep 1: the one before must stay")
    train(folder, "-e", expect="--evaluate needs a model")
    train(folder, "-c", expect="--correct needs a model")
    train(folder, "-c", "-e", expect="--evaluate or --correct, not both")
    train(folder, "-k", 3, expect="--top-k needs --correct")
    train(folder, "--head-stash", 0.1, "--sample-rate", 0.2, expect="--head-stash: with --sample-rate a loss keeps no logits")
    train(folder, "--lr", "1e30", "--optimizer", "sgd", "--tied-epochs", 0, expect="take a smaller --lr")
    (folder / "data/test.txt").write_text("acounts nowhere\n")
    train(folder, ranks=2, expect="its correction is not in words.txt")
    (folder / "data/test.txt").unlink()
    lines = train(folder, "--steps", 2)
    check(len(lines) == 2, f"without a test: {lines}")
    help_text = TRAINER.run("--help")
    check(help_text.returncode == 0 and "--tensorboard DIR" in help_text.stdout and "(0.008)" in help_text.stdout, f"{help_text}")


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        if BASELINES:
            make_data(folder)
            check_baselines(folder)
            return report()
        check_prepare(folder)
        check_prepare_errors(folder)
        make_data(folder)
        one = train(folder)
        check_ranks(folder, one)
        if FAILED: # nothing that follows can be right
            sys.exit("\n".join(FAILED))
        check_correct(folder, check_resume(folder, one))
        check_dictionary(folder)
        check_interrupted(folder, one)
        check_head_options(folder)
        check_parallel_options(folder, one)
        check_run(folder)
        check_baselines(folder)
        check_errors(folder)
    return report()


if __name__ == "__main__":
    sys.exit(main())
