#!/usr/bin/env python3
"""Queries a second of shard-search and of an IndexFlatIP of faiss-cpu on the same table, and the recall of shard-search.

    bench_search.py                                             # 1,304,136 x 128 normally distributed float32 numbers, by --seed
    bench_search.py CHECKPOINT --tensor fc.weight --batches 16:20

Needs NumPy; without faiss its column is left out, and NumPy finds the nearest rows. Runs the shard-search of a build folder, as
tools/shard-search does: $SHARD_BUILD, else build/release. Queries are rows of the table, drawn by --seed. Seconds are of processor time
(--clock wall: of the clock), with --threads for both. `shard-search CHECKPOINT -k K --batch-size SIZE --queries FILE` runs with one batch
and with COUNT more; the difference is their time, so that reading and writing JSON counts, and loading does not. Of faiss it is
index.search of each of these batches. Both take turns; a number is the median of the --rounds, the ratio that of the rounds' ratios.

Recall is the part of the K rows that are right: those whose product with the query is not below the K-th largest, whichever of equal
rows these are. Scores are compared in float64, up to the rounding of a product in float32.
"""
import argparse
import json
import os
import pathlib
import resource
import statistics
import struct
import subprocess
import sys
import tempfile
import time

try:
    import numpy as np
except ImportError:
    sys.exit("bench_search: NumPy is missing: pip install numpy")
try:
    import faiss
except ImportError:
    faiss = None

SHARD_SEARCH = pathlib.Path(__file__).resolve().parent / "shard-search"
ROUNDING = 1e-6 # of a product in float32, of the norms' product
BLOCK = 16 # queries of which NumPy has all products


# ---- the table ----

def write_table(path, rows, width, seed):
    table = np.random.default_rng(seed).standard_normal((rows, width), np.float32)
    header = json.dumps({"table": {"dtype": "F32", "shape": [rows, width], "data_offsets": [0, table.nbytes]}}).encode()
    header += b" " * (-len(header) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        table.tofile(file)


def read_table(checkpoint, tensor, folder):
    """As shard-search exports it; not in memory at once."""
    named = ["--tensor", tensor] if tensor else []
    subprocess.run([SHARD_SEARCH, "export", checkpoint, *named, "--npy", folder / "table.npy"], check=True)
    return np.load(folder / "table.npy", mmap_mode="r")


# ---- both ways ----

def seconds_of(wanted, who):
    if wanted.clock == "wall":
        return time.perf_counter()
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def run_shard_search(wanted, checkpoint, rows, size, folder):
    """(seconds, the rows found for each query)."""
    (folder / "queries").write_text("".join(f"{row}\n" for row in rows))
    named = ["--tensor", wanted.tensor] if wanted.tensor else []
    command = [SHARD_SEARCH, checkpoint, *named, "-k", wanted.k, "--batch-size", size, "--queries", folder / "queries"]
    begun = seconds_of(wanted, resource.RUSAGE_CHILDREN)
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, check=True, text=True,
                          env=dict(os.environ, OMP_NUM_THREADS=str(wanted.threads)))
    seconds = seconds_of(wanted, resource.RUSAGE_CHILDREN) - begun
    return seconds, [json.loads(line)["rows"] for line in done.stdout.splitlines()]


def run_faiss(wanted, index, queries, size):
    begun = seconds_of(wanted, resource.RUSAGE_SELF)
    found = [index.search(queries[i:i + size], wanted.k)[1] for i in range(0, len(queries), size)]
    return seconds_of(wanted, resource.RUSAGE_SELF) - begun, np.concatenate(found)


def search_by_numpy(table, queries, k):
    found = []
    for i in range(0, len(queries), BLOCK):
        products = queries[i:i + BLOCK] @ table.T
        found.append(np.argpartition(-products, k - 1, axis=1)[:, :k])
    return np.concatenate(found)


def recall(table, queries, found, reference):
    right = 0
    for query, own, others in zip(queries.astype(np.float64), found, reference):
        own = table[np.unique(own)].astype(np.float64)
        least = (table[others].astype(np.float64) @ query).min()
        slack = ROUNDING * np.linalg.norm(query) * np.linalg.norm(own, axis=1)
        right += np.count_nonzero(own @ query >= least - slack)
    return right / reference.size


# ---- the comparison ----

def rate(queries, seconds):
    return queries / max(seconds, 1e-9)


def text_of(number):
    return f"{number:,.0f}" if number >= 100 else f"{number:.1f}"


def measure(wanted, checkpoint, table, index, size, count, folder):
    rows = np.random.default_rng(wanted.seed + size).integers(len(table), size=size * (1 + count))
    queries = np.ascontiguousarray(table[rows], np.float32)
    own, others = [], []
    for _ in range(wanted.rounds):
        first, _ = run_shard_search(wanted, checkpoint, rows[:size], size, folder)
        whole, found = run_shard_search(wanted, checkpoint, rows, size, folder)
        own.append(rate(size * count, whole - first))
        if index:
            run_faiss(wanted, index, queries[:size], size)
            seconds, reference = run_faiss(wanted, index, queries, size)
            others.append(rate(len(rows), seconds))
    if not index:
        reference = search_by_numpy(np.asarray(table, np.float32), queries, wanted.k)
    columns = [f"{size}", text_of(statistics.median(own))]
    if index:
        columns += [text_of(statistics.median(others)), f"{statistics.median(a / b for a, b in zip(own, others)):.1f}"]
    print("| " + " | ".join([*columns, f"{recall(table, queries, found, reference):.6g}"]) + " |", flush=True)


def batches(text):
    pairs = [pair.split(":") for pair in text.split(",")]
    if any(len(pair) != 2 or not all(word.isdecimal() and int(word) > 0 for word in pair) for pair in pairs):
        raise argparse.ArgumentTypeError(f"\"{text}\" is not SIZE:COUNT,...")
    return [(int(size), int(count)) for size, count in pairs]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", nargs="?", metavar="CHECKPOINT", help="a safetensors file; without it a table is made")
    parser.add_argument("--tensor", metavar="NAME", help="its tensor; without it the only floating one of two dimensions")
    parser.add_argument("--rows", type=int, default=1304136, metavar="N", help="of the table that is made (%(default)s)")
    parser.add_argument("--width", type=int, default=128, metavar="N", help="of the table that is made (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the table and of the queries (%(default)s)")
    parser.add_argument("--k", type=int, default=10, metavar="N", help="nearest rows of a query (%(default)s)")
    parser.add_argument("--batches", type=batches, default="1:120,16:60,256:12", metavar="SIZE:COUNT,...",
                        help="queries in a batch, and how many batches are measured (%(default)s)")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="of both (%(default)s)")
    parser.add_argument("--clock", choices=["processor", "wall"], default="processor", help="(%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="(%(default)s)")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        checkpoint = wanted.checkpoint or folder / "table.safetensors"
        if not wanted.checkpoint:
            write_table(checkpoint, wanted.rows, wanted.width, wanted.seed)
        table, index = read_table(checkpoint, wanted.tensor, folder), None
        if faiss:
            faiss.omp_set_num_threads(wanted.threads)
            index = faiss.IndexFlatIP(table.shape[1])
            index.add(np.asarray(table, np.float32))
        print(f"{len(table):,} x {table.shape[1]}, {wanted.k} nearest rows, {wanted.threads} threads, {wanted.clock} time, NumPy {np.__version__}, "
              + (f"faiss {faiss.__version__}" if faiss else "no faiss"))
        print("| queries in a batch | shard-search, queries/s |" + (" faiss, queries/s | ratio |" if faiss else "") + " recall |")
        print("|---:" * (5 if faiss else 3) + "|", flush=True)
        for size, count in wanted.batches:
            measure(wanted, checkpoint, table, index, size, count, folder)


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as failed: # which has said why
        sys.exit(failed.returncode)
