#!/usr/bin/env python3
"""Baselines on the words that prepare has written: words.txt and test.txt of DIR.

    apt-get install hunspell aspell aspell-en
    python3 -m venv venv && venv/bin/pip install symspellpy
    venv/bin/python baselines.py DIR

    hunspell    a dictionary of the plain words, without affixes; hunspell -a
    aspell      a master dictionary of the words with the settings of English; aspell -a --sug-mode MODE
    symspell    edit distance 2, by distance and then by the counts of words.txt (symspellpy)

All get the same words, and the same typed words one at a time; hunspell, which takes much longer, each tenth of them. A typed word that
is in the dictionary is right to aspell and hunspell, which have no correction for it; symspell and spell give five words for it, too.
Prints the rows of README.md's table: the typed words, the parts of them whose correction is the first one, and among the first five, and
the typed words a second, without the time to load the dictionary; then the parts without the typed words that are in the dictionary.
"""
import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time

TOP = 5


def read_pairs(path):
    try:
        with open(path, encoding="utf-8") as file:
            return [line.rstrip("\n").split(" ") for line in file]
    except OSError as error:
        sys.exit(f"{path}: {error.strerror}; give the folder that prepare has written")


def ask(command, typed):
    """({typed word: corrections}, seconds) of a program with ispell's protocol: a line for each word, then an empty one."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8", bufsize=1) as process:
        process.stdout.readline() # the version
        begun = None
        found = {}
        for word in ["a", *typed]: # the first one loads the dictionary
            if word != "a" and begun is None:
                begun = time.perf_counter()
            process.stdin.write(f"^{word}\n")
            process.stdin.flush()
            corrections = []
            for line in iter(process.stdout.readline, "\n"):
                if not line:
                    sys.exit(f"{command[0]} ended at \"{word}\"")
                if line[0] in "*+-" and not corrections:
                    corrections = [word]
                elif line[0] == "&" and not corrections:
                    corrections = line.rstrip("\n").partition(": ")[2].split(", ")
            found[word] = corrections
        seconds = time.perf_counter() - begun
        process.stdin.close()
        process.wait()
    return found, seconds


def by_hunspell(words, typed, folder, _):
    stem = os.path.join(folder, "words")
    with open(stem + ".dic", "w", encoding="utf-8") as file:
        file.write(f"{len(words)}\n" + "".join(word.replace("/", "\\/") + "\n" for word, _ in words))
    letters = "".join(sorted({letter for word, _ in words for letter in word if letter.isalpha()}))
    with open(stem + ".aff", "w", encoding="utf-8") as file:
        file.write(f"SET UTF-8\nTRY esianrtolcdugmphbyfvkwzxjq\nWORDCHARS '-.{letters}\nMAXDIFF 5\n")
    return ask(["hunspell", "-a", "-i", "UTF-8", "-d", stem], typed)


def by_aspell(words, typed, folder, mode):
    master = os.path.join(folder, "words.rws")
    subprocess.run(["aspell", "--lang=en", "--encoding=utf-8", "create", "master", master], text=True, encoding="utf-8", check=True,
                   input="".join(word + "\n" for word, _ in words), stderr=subprocess.DEVNULL)
    return ask(["aspell", "-a", "--lang=en", "--encoding=utf-8", f"--master={master}", f"--sug-mode={mode}", f"--home-dir={folder}"], typed)


def by_symspell(words, typed, folder, _):
    from symspellpy import SymSpell, Verbosity
    model = SymSpell(max_dictionary_edit_distance=2, prefix_length=7)
    for word, count in words:
        model.create_dictionary_entry(word, int(count) + 1)
    begun = time.perf_counter()
    found = {word: [one.term for one in model.lookup(word, Verbosity.ALL, max_edit_distance=2)[:TOP]] for word in typed}
    return found, time.perf_counter() - begun


def shares_of(test, found):
    """The columns of top-1 and top-5."""
    first = sum(found[typed][:1] == [correction] for typed, correction in test)
    among = sum(correction in found[typed] for typed, correction in test)
    return f"{100 * first / max(len(test), 1):.2f} | {100 * among / max(len(test), 1):.2f}"


def main(argv):
    baselines = {"hunspell": (by_hunspell, 10), "aspell": (by_aspell, 1), "symspell": (by_symspell, 1)}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(baselines), help="this baseline alone")
    parser.add_argument("--sug-mode", default="normal", metavar="MODE", help="aspell's: ultra, fast, normal, slow, bad-spellers (%(default)s)")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="take every N-th of these typed words (%(default)s)")
    parser.add_argument("folder", metavar="DIR")
    wanted = parser.parse_args(argv)
    words = read_pairs(os.path.join(wanted.folder, "words.txt"))
    tests = read_pairs(os.path.join(wanted.folder, "test.txt"))
    known, others = {word for word, _ in words}, []
    print(f"{len(words)} words\n| program | typed words | top-1 % | top-5 % | words/s |\n|---|---:|---:|---:|---:|")
    for name, (predict, every) in baselines.items():
        if wanted.only not in (None, name):
            continue
        if not (importlib.util.find_spec("symspellpy") if name == "symspell" else shutil.which(name)):
            print(f"{name}: not installed")
            continue
        test = tests[::every * wanted.every]
        with tempfile.TemporaryDirectory() as folder:
            found, seconds = predict(words, [typed for typed, _ in test], folder, wanted.sug_mode)
        # aspell and hunspell write a correction like its typed word; words.txt is in lower case.
        lower = {typed: [one.lower() for one in ones[:TOP]] for typed, ones in found.items()}
        shares = shares_of(test, lower)
        print(f"| {name} | {len(test):,} | {shares} | {len(test) / seconds:.1f} |", flush=True)
        rest = [pair for pair in test if pair[0] not in known]
        others.append(f"| {name} | {len(rest):,} | {shares_of(rest, lower)} |")
    if others:
        print("\nWithout the typed words that are in the dictionary:\n| program | typed words | top-1 % | top-5 % |\n|---|---:|---:|---:|")
        print("\n".join(others))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
