"""Debian's index of packages, as apt has it or in a file: for the programs that make data of it."""
import bz2
import gzip
import hashlib
import lzma
import os
import re
import shutil
import subprocess
import sys
import zlib

NO_INDEX = "run `apt-get update`, which loads it, or give --index FILE, the Packages file of a Debian mirror"
OPENERS = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}


def read_file(path):
    """Its text; files of gzip, xz, bzip2 and lz4 are unpacked."""
    try:
        if path.endswith(".lz4"): # which the standard library does not read
            return subprocess.run(["lz4", "-dc", path], capture_output=True, check=True).stdout.decode("utf-8", "replace")
        with OPENERS.get(os.path.splitext(path)[1], open)(path, "rb") as file:
            return file.read().decode("utf-8", "replace")
    except (OSError, EOFError, lzma.LZMAError, zlib.error, subprocess.CalledProcessError) as error:
        return sys.exit(f"prepare: {path}: {error}")


def read_index_of_apt():
    if not shutil.which("apt-cache"):
        sys.exit("prepare: there is no apt-cache on this machine: give --index FILE, the Packages file of a Debian mirror")
    try:
        return subprocess.run(["apt-cache", "dumpavail"], capture_output=True, check=True).stdout.decode("utf-8", "replace")
    except subprocess.CalledProcessError as error:
        return sys.exit(f"prepare: {error}: {error.stderr.decode('utf-8', 'replace').strip()}")


def read_index(path):
    """The text of an index of at least one package; None: apt's."""
    text = read_file(path) if path else read_index_of_apt()
    if not re.search("^Package:", text, re.MULTILINE):
        sys.exit(f"prepare: {path or 'the index of apt'} has no packages: {NO_INDEX}")
    return text


def read_packages(text):
    """{name: {field: value}}, of the first version of each package."""
    packages = {}
    for paragraph in text.split("\n\n"):
        fields, last = {}, None
        for line in paragraph.split("\n"):
            if line[:1] in (" ", "\t") and last:
                fields[last] += "\n" + line.strip()
            elif ":" in line:
                last, _, value = line.partition(":")
                fields[last] = value.strip()
        if "Package" in fields:
            packages.setdefault(fields["Package"], fields)
    return packages


def is_test(name):
    """Whether a package is held out: of one in ten, by its name alone, so that it stays so when the index changes."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % 10 == 0
