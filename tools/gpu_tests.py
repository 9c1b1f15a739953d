"""Runs the test programs of a build on a GPU: gpu_tests.py STEP BUILD RESULTS [options].

kernels   programs without ranks, each in one process (one CUDA context), again with a process a test if that fails
device    graphs, events, memory and NCCL alone, with a process a test
ranks     all others, with 1 to 3 ranks; those that fail again, alone
nccl      the same with a GPU for each rank
sanitize  the kernels' programs under compute-sanitizer, in parts

What passed is in RESULTS/tests.jsonl and is not run again. Exit code 0: all passed; 1: some failed; 75: the time
was over before all had run, as RESULTS says.
"""
import argparse
import concurrent.futures
import ctypes
import fnmatch
import json
import math
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

import count_tests
import gpu_report

LIBC = ctypes.CDLL(None)
UNFINISHED = 75
SKIPPED = 77
TESTS = pathlib.Path(__file__).resolve().parent.parent / "tests"
# Of no GPU, or of the emulation alone.
ELSEWHERE = {"cuda_emulation", "cuda_libraries", "device_transport", "device_transport_sums", "folder", "glyphs", "image", "imagenet",
             "imagenet_cuda", "imagenet_faults", "imagenet_files", "imagenet_head", "imagenet_head_options", "imagenet_mpi", "loader",
             "pairs", "records", "spell", "transform", "untrusted_bytes", "untrusted_headers", "untrusted_images", "untrusted_indexes",
             "xmc"}
# They take all memory of the GPU, so that no other program can run with them.
ALONE = ["cuda_memory", "nccl_alone"]
DEVICE = ["cuda_device", "nccl_alone", "memory_report", "event", "label_rank"]
FIRST = ["device_*", "matmul", "conv2d", "op_*", "cross_entropy", "linear", "embedding", "batch_norm", "softmax"]
# The most instructive ones, then those whose kernels use shared memory.
SANITIZED = ["device_attention", "product_step", "device_cross_entropy", "device_batch_norm", "device_embedding", "device_permute", "device_rows"]
SHARED_MEMORY = ["device_attention", "device_cross_entropy", "device_batch_norm", "device_check_index", "device_embedding", "device_layer_norm",
                 "device_lists", "device_normalize", "device_optimizer", "device_permute", "device_pieces", "device_rows",
                 "device_softmax", "device_sum_dim", "device_sum_rows", "device_top_k", "product_step"]
# Of the programs with ranks: the last layers' kernels first, and last those that test files more than the GPU.
FIRST_OF_RANKS = ["linear_*", "head_*", "sampled_*", "large_logits", "logsumexp", "attention", "graph_refuses", "wrong_labels", "non_finite",
                  "classifier*", "cross_entropy*", "parallel_*", "zero*"]
LAST_OF_RANKS = ["allocations", "checkpoint*", "checksums", "save_async*", "combinations", "random_networks"]
NOTABLE = re.compile(r"^(?!.*:[FE]:).*(?:refuses |NCCL WARN|go through |falls back|without tensor cores|fails to compute|reduced precision|"
                     r"cuDNN: attention .* is computed by).*", re.MULTILINE)
TELLS_ENGINES = ["device_attention", "attention"]  # cuDNN's, at the log level debug


def forks(stem):
    """Whether the program's tests start processes, which must not have used CUDA before."""
    return bool(re.search(r"\b(run_ranks|run_job|run_job_of|run_these_ranks|fork)\s*\(", (TESTS / f"test_{stem}.c").read_text(encoding="utf-8")))


def programs(build):
    found = [path.name.removeprefix("test_") for path in sorted((build / "tests").glob("test_*")) if path.is_file()]
    return [stem for stem in found if stem not in ELSEWHERE and (TESTS / f"test_{stem}.c").exists()]


def ordered(stems, patterns):
    """Those of the patterns first, in their order."""
    def place(stem):
        return next((i for i, pattern in enumerate(patterns) if fnmatch.fnmatch(stem, pattern)), len(patterns))
    return sorted(stems, key=place)


class Runner:
    def __init__(self, options):
        self.step, self.build, self.results, self.options = options.step, options.build.resolve(), options.results, options
        self.file = self.results / "tests.jsonl"
        self.deadline = time.monotonic() + options.limit
        self.lock, self.running, self.ended = threading.Lock(), set(), False
        self.before = gpu_report.lines_of(self.file)
        self.environment = dict(os.environ, SHARD_DEVICE="cuda", SHARD_PLUGIN_PATH=str(self.build / "libshard"), OMP_NUM_THREADS="2",
                                OMP_WAIT_POLICY="passive", SHARD_LOG="info", CK_TIMEOUT_MULTIPLIER=os.environ.get("CK_TIMEOUT_MULTIPLIER", "4"))
        if self.step != "nccl":  # ranks share one GPU
            self.environment["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]

    def passed(self, key):
        return any(line["key"] == key and line["result"] in ("passed", "skipped") for line in self.before)

    def note(self, record, text):
        """A record in the file, of one write, and what the program printed if it failed."""
        with self.lock:
            if record["result"] not in ("passed", "skipped"):
                name = re.sub(r"[^\w.-]", "-", record["key"])
                (self.results / f"log-{name}.txt").write_text(text[:20000] + ("\n...\n" + text[-80000:] if len(text) > 20000 else ""),
                                                              encoding="utf-8")
            notable = sorted(set(NOTABLE.findall(text)))[:20]
            if notable:
                with open(self.results / "notable.txt", "a", encoding="utf-8") as file:
                    file.write("".join(f"{record['program']}: {line.strip()[:400]}\n" for line in notable))
            with open(self.file, "a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
            self.before.append(record)
            print(f"{record['result']:8} {record['key']:44} {record['seconds']:6.1f} s  {record['passed']} passed, {record['failed']} failed", flush=True)

    def run(self, program, way, environment, command=(), part="", limit=None, wrong_codes=()):
        """One program; its record, or None where the step's time ends before."""
        key = " ".join(filter(None, (self.step, program, way, part)))
        if self.passed(key):
            return next(line for line in self.before if line["key"] == key and line["result"] in ("passed", "skipped"))
        limit = limit or self.options.timeout
        left = self.deadline - time.monotonic()
        if left < 5 or self.ended:
            return None
        started, over = time.monotonic(), False
        if program in TELLS_ENGINES:
            environment = {**environment, "SHARD_LOG": "debug"}
        process = subprocess.Popen([*command, str(self.build / "tests" / f"test_{program}")], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   stdin=subprocess.DEVNULL, env={**self.environment, **environment}, start_new_session=True, cwd=self.build,
                                   preexec_fn=die_with_parent)
        with self.lock:
            self.running.add(process)
        try:
            output, _ = process.communicate(timeout=min(limit, left))
        except subprocess.TimeoutExpired:
            over = True
            end(process)
            output, _ = process.communicate()
        with self.lock:
            self.running.discard(process)
        if self.ended or (over and left < limit):
            return None
        text = output.decode("utf-8", "replace")
        record = {"key": key, "step": self.step, "program": program, "way": way, "part": part, "seconds": round(time.monotonic() - started, 2),
                  "exit": process.returncode, "left_out": text.count("left out: a run of"), **counted(process.returncode, text)}
        if over:
            record["result"] = "timeout"
        elif process.returncode in wrong_codes:
            record["result"] = "failed"
        self.note(record, text)
        return record

    def end_all(self, *_):
        self.ended = True
        for process in list(self.running):
            end(process)


def die_with_parent():
    LIBC.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def end(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def counted(code, text):
    """The result, and how many tests passed and failed; a program that ended badly has at least one that failed."""
    result = {0: "passed", SKIPPED: "skipped"}.get(code, "failed")
    passed, failed, _ = count_tests.count({"passed": "OK", "skipped": "SKIP"}.get(result), text)
    return {"result": result, "passed": passed, "failed": failed}


def run_kernels(runner, stems):
    wanted = ordered([stem for stem in stems if stem not in DEVICE + ALONE and not forks(stem)], FIRST)

    def one(stem):
        alone = runner.run(stem, "one process", {"CK_FORK": "no"})
        if alone is None or alone["result"] in ("passed", "skipped"):
            return alone
        return runner.run(stem, "a process a test", {})
    alone = everywhere(runner, one, [stem for stem in ALONE if stem in stems and stem not in DEVICE], 1)
    return alone + everywhere(runner, one, wanted, max(2, min(12, (os.cpu_count() or 2) * 2 // 3)))


def run_device(runner, stems):
    def one(stem):
        return runner.run(stem, "", {"NCCL_DEBUG": "WARN", "SHARD_TEST_RANKS": "1,2,3"})
    wanted = [stem for stem in DEVICE if stem in stems]
    return everywhere(runner, one, [stem for stem in wanted if stem in ALONE], 1) + everywhere(
        runner, one, [stem for stem in wanted if stem not in ALONE], 3)


def run_ranks(runner, stems):
    ranks = "1,2,3" if runner.step == "ranks" else ",".join(map(str, range(2, runner.options.gpus + 1)))
    environment = {"SHARD_TEST_RANKS": ranks, "NCCL_DEBUG": "WARN", **({"SHARD_NCCL": "1"} if runner.step == "nccl" else {})}
    wanted = ordered([stem for stem in stems if stem not in DEVICE and forks(stem)], FIRST_OF_RANKS)
    wanted.sort(key=lambda stem: any(fnmatch.fnmatch(stem, pattern) for pattern in LAST_OF_RANKS))
    together = everywhere(runner, lambda stem: runner.run(stem, "", environment), [stem for stem in wanted if not runner.passed(f"{runner.step} {stem} alone")], 3)
    again = [record["program"] for record in together if record and record["result"] not in ("passed", "skipped")]
    alone = everywhere(runner, lambda stem: runner.run(stem, "alone", environment), again, 1)
    return [record for record in together if record is None or record["program"] not in again] + alone


def run_sanitize(runner, stems):
    if not shutil.which("compute-sanitizer"):
        return "compute-sanitizer is not installed"
    seconds = {line["program"]: line["seconds"] for line in runner.before if line["step"] == "kernels" and line["way"] == "one process"}
    wanted = ordered([stem for stem in stems if stem.startswith("device_") or stem in ("matmul", "conv2d", "product_step")], SANITIZED)
    if not wanted:
        return f"no program of {runner.options.programs} is one of those for compute-sanitizer"
    jobs = [("memcheck", stem) for stem in wanted[:5]] + [("racecheck", stem) for stem in wanted[:2] if stem in SHARED_MEMORY]
    jobs += [("memcheck", stem) for stem in wanted[5:]] + [("racecheck", stem) for stem in wanted[2:] if stem in SHARED_MEMORY]
    # Under the tool a kernel takes some tens of times as long.
    cut = [(tool, stem, part + 1, parts) for tool, stem in jobs for parts in [min(16, max(1, math.ceil(seconds.get(stem, 5) / 4)))]
           for part in range(parts)]

    def one(job):
        tool, stem, part, parts = job
        environment = {"CK_FORK": "no", "SHARD_TEST_PART": f"{part}/{parts}"}
        command = ["compute-sanitizer", "--tool", tool, "--report-api-errors", "no", "--error-exitcode", "99"]
        return runner.run(stem, tool, environment, command, f"{part} of {parts}", wrong_codes=(99,))
    if cut and one(cut[0]) is not None and runner.before[-1]["result"] == "failed":
        log = (runner.results / "log-{}.txt".format(re.sub(r"[^\w.-]", "-", runner.before[-1]["key"]))).read_text(encoding="utf-8")
        if re.search(r"Device not supported|Unable to find injection library|Failed to initialize", log):
            return "compute-sanitizer does not work on this machine: " + log.strip().splitlines()[0]
    return everywhere(runner, one, cut, 4)


def everywhere(runner, one, jobs, most):
    """The records of all jobs, some at once; None for each that had no time."""
    with concurrent.futures.ThreadPoolExecutor(runner.options.jobs or most) as pool:
        return list(pool.map(one, jobs))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=["kernels", "device", "ranks", "nccl", "sanitize"])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("results", type=pathlib.Path)
    parser.add_argument("--jobs", type=int, default=0, help="programs at once; 0: as the step has it")
    parser.add_argument("--limit", type=float, default=540, help="seconds for the step")
    parser.add_argument("--timeout", type=float, default=90, help="seconds for a program")
    parser.add_argument("--programs", default="*", help="patterns of names, with commas between")
    parser.add_argument("--gpus", type=int, default=1)
    options = parser.parse_args()
    runner = Runner(options)
    die_with_parent()
    signal.signal(signal.SIGTERM, runner.end_all)
    stems = [stem for stem in programs(options.build) if any(fnmatch.fnmatch(stem, pattern) for pattern in options.programs.split(","))]
    if not stems:
        sys.exit(f"no test program in {options.build / 'tests'} is one of {options.programs}")
    run = {"kernels": run_kernels, "device": run_device, "ranks": run_ranks, "nccl": run_ranks, "sanitize": run_sanitize}[options.step]
    records = run(runner, stems)
    skipped = options.results / f"skipped-{options.step}.txt"
    if isinstance(records, str):
        skipped.write_text(records + "\n", encoding="utf-8")
        print(f"skipped: {records}")
        return 0
    skipped.unlink(missing_ok=True)
    if None in records:
        print(f"{records.count(None)} of {len(records)} had no time; run the step again for them")
        return UNFINISHED
    return 1 if any(record["result"] not in ("passed", "skipped") for record in records) else 0


if __name__ == "__main__":
    sys.exit(main())
