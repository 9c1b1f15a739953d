#!/usr/bin/env python3
"""One rank of a job fails: every kind of failure at every place, of every rank, under each launcher. The job ends in time with an
exit code other than 0, no other rank ends with 0, the rank is named, and no process, shared memory or temporary file is left.
The function promise is the table of docs/errors.md.

Usage: check_failing_ranks.py TRANSPORT EXTENT FAILING_PROGRAM LAUNCHER [--seed N] [--jobs N] [--only KIND:PLACE]

TRANSPORT: shm, nccl (shm with the emulated GPUs of the build), openmpi, mpich. EXTENT: some, all, or a number of random draws.
LAUNCHER: shardrun, or for an MPI a program that prints MPI's number of ranks. Exit code 77 is "skipped".
"""
import argparse
import collections
import concurrent.futures
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from support.launched import MULTIPLIER, PROMISED_SECONDS, SECONDS, TIMEOUT, end_jobs, find_mpirun, folders, kill_all, processes_of

KINDS = ["kill", "segv", "stop", "exit3", "exit0", "_exit0", "abort", "oom"]
PLACES = ["before_init", "init", "between", "computing", "waiting", "inside", "save", "load", "before_finalize", "finalize",
          "after_finalize"]
# Milliseconds from the moment at which the rank comes to the place: less than LATE_MILLISECONDS of failing_program.c.
MOST_MILLISECONDS = {"init": 300, "waiting": 300, "inside": 200, "save": 200, "load": 200, "computing": 500, "finalize": 200}
SIZES = [2, 3, 4]

# On a slow machine (MULTIPLIER) a case may take longer than is promised, and few of them do: one, or one of so many.
LATE_SHARE = 50

START_SECONDS = 20 * MULTIPLIER  # for a job to come to the place

Case = collections.namedtuple("Case", "kind place size rank milliseconds")

# What libshard promises of a case. code, of the launcher: "fails", "succeeds" or "any"; others, the other ranks' exit codes: "fail"
# or "any"; seconds after the failure; named: "each" of the others names the rank, the output of the "job" does, or "no".
Promise = collections.namedtuple("Promise", "code others seconds named")

# Where a rank ends before MPI_Init or in it, the others wait for it there. Then Open MPI's mpirun (4.1) may hang or crash after all
# ranks have ended (PMIx), and both MPIs may leave a file in /dev/shm that they have just made.
STARTS = ("before_init", "init")


def mpi_naming(transport, case):
    """MPI's launchers end a job when a rank dies, before the others can say anything. MPI_Init has no names."""
    if case.place in STARTS:
        return "no"
    said_by_ranks = case.kind in ("stop", "exit3", "exit0")
    return "job" if transport == "openmpi" or said_by_ranks else "no"  # MPICH's launcher names a process


def promise(transport, case):
    """None: nothing is promised, and the case is not run."""
    mpi, stops = transport in ("openmpi", "mpich"), case.kind == "stop"
    ends_well = case.kind in ("exit0", "_exit0")
    seconds = TIMEOUT + SECONDS if stops else SECONDS
    named = mpi_naming(transport, case) if mpi else "each"
    if case.place == "after_finalize":  # the others may have ended well
        if stops:
            return None  # a rank may take as long as it likes
        return Promise("succeeds" if ends_well else "fails", "any", seconds, "no" if ends_well or mpi else "job")
    # No launcher objects to exit code 0 before it knows the rank, and MPICH's to none: the others wait in MPI_Init.
    if mpi and case.place in STARTS and (ends_well or (transport == "mpich" and case.kind == "exit3")):
        seconds = TIMEOUT + SECONDS
    if transport == "mpich" and case.kind == "_exit0" and case.place != "before_init":  # it ends the job with exit code 0
        return Promise("any", "fail", seconds, named)
    if case.place == "finalize" and (case.kind == "oom" or (stops and not mpi)):  # the others may leave before it dies
        return Promise("fails", "any", seconds, "no" if mpi else "job")
    return Promise("fails", "fail", seconds, named)


# ---- memory cgroups ----

def find_cgroups():
    """The folder of this process's memory cgroup, and the file of a limit; None where there is none to write to."""
    for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return pathlib.Path("/sys/fs/cgroup/memory" + path), "memory.limit_in_bytes"
    for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
        if line.startswith("0::"):
            return pathlib.Path("/sys/fs/cgroup" + line[3:]), "memory.max"
    return None


class MemoryLimit:
    """A memory cgroup of one rank."""
    BYTES = 8 << 20

    def __init__(self):
        self.folder = None
        found = find_cgroups()
        if not found:
            return
        folder = found[0] / f"failing-{os.getpid()}-{time.monotonic_ns()}"
        try:
            folder.mkdir()
            self.folder = folder
            (folder / found[1]).write_text(str(self.BYTES))
            if (folder / "memory.swap.max").exists():
                (folder / "memory.swap.max").write_text("0")
        except OSError:
            self.close()

    def close(self):
        for _ in range(20):
            try:
                if self.folder:
                    self.folder.rmdir()
                break
            except FileNotFoundError:
                break
            except OSError:
                time.sleep(0.05)
        self.folder = None


def can_limit_memory():
    limit = MemoryLimit()
    able = limit.folder is not None
    limit.close()
    return able


# ---- shared memory ----

# A job gets a /dev/shm of its own, so that what it leaves there is its own.
OWN_SHM = ["unshare", "--mount", "sh", "-c",
           'mount -t tmpfs failing /dev/shm && { "$@"; code=$?; ls -A /dev/shm >"$FAILING_MARK/shm"; exit $code; }', "sh"]


def can_own_shm():
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run(OWN_SHM + ["true"], env={**os.environ, "FAILING_MARK": folder}, stderr=subprocess.DEVNULL).returncode == 0


# ---- a job ----

class Job:
    def __init__(self, settings, case):
        self.settings, self.case = settings, case
        self.folder, self.late = pathlib.Path(tempfile.mkdtemp(prefix="failing-")), False
        folders.add(self.folder)
        self.limit = MemoryLimit() if case.kind == "oom" else None
        for name in ("tmp", "files"):
            (self.folder / name).mkdir()
        self.environment = {
            **os.environ, "SHARD_TIMEOUT": str(TIMEOUT), "ASAN_OPTIONS": "detect_leaks=0", "OMP_NUM_THREADS": "1",
            "TMPDIR": str(self.folder / "tmp"), "FAILING_MARK": str(self.folder), "FAILING_NOTES": str(self.folder / "notes"),
            "FAILING_FILE": str(self.folder / "files" / "failing.safetensors"),
        }
        if self.limit and self.limit.folder:
            self.environment["FAILING_GROUP"] = str(self.limit.folder)

    def command(self, size, *arguments):
        return (OWN_SHM if self.settings.own_shm else []) + [*self.settings.launcher, "-n", str(size), self.settings.program,
                                                             *map(str, arguments)]

    def run(self, *arguments, size, limit):
        """Exit code (None: no end), output, the time of the end."""
        with open(self.folder / "output", "wb") as output:
            process = subprocess.Popen(self.command(size, *arguments), env=self.environment, stdin=subprocess.DEVNULL, stdout=output,
                                       stderr=output, start_new_session=True)
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        ended, self.hanging = time.monotonic(), []
        if code is None:
            self.hanging = list(processes_of(self.folder).values())
            kill_all(processes_of(self.folder))
            process.wait()
        return code, (self.folder / "output").read_text(errors="replace"), ended

    def read(self, name):
        path = self.folder / name
        return path.read_text() if path.exists() else ""

    def exit_code(self, rank):
        """None: the rank has not ended by exit."""
        text = self.read(f"exit.{rank}").split()
        return int(text[0]) if text else None

    def left_processes(self):
        """Those that do not end by themselves at once."""
        for _ in range(20):
            left = processes_of(self.folder)
            if not left:
                break
            time.sleep(0.05 * MULTIPLIER)
        kill_all(left)
        return left

    def close(self):
        if self.limit:
            self.limit.close()
        folders.discard(self.folder)
        shutil.rmtree(self.folder, ignore_errors=True)


def names_rank(line, rank):
    """Messages of libshard, of shardrun and of Open MPI's mpirun."""
    return re.search(rf"ranks? ([0-9, and]*)?\b{rank}\b|shard\[{rank}\] error|Process name: \[\[\d+,\d+\],{rank}\]", line) is not None


def launcher_crashed(output):
    """A line of the stack trace of Open MPI's mpirun names mpirun itself; that of a rank names the program."""
    return re.search(r"\] [^ ]*/mpirun[.\w]*\(\+0x[0-9a-f]+\)", output) is not None


def find_unnamed(job, wanted, output):
    case, lines = job.case, output.splitlines()
    if wanted == "each":
        for other in range(case.size):
            said = [line.split("error", 1)[1] for line in lines if re.match(rf"(rank {other} after .* s: error |shard\[{other}\] error: )", line)]
            if other != case.rank and not any(names_rank(line, case.rank) for line in said):
                return f"rank {other} does not name the rank"
    if wanted == "job" and not any(names_rank(line, case.rank) for line in lines):
        return "the rank is not named"
    return None


def check_files(job):
    """A job after the one that failed finds the checkpoint whole, and removes temporary files."""
    job.environment["FAILING_MARK"] = str(job.folder / "files")  # of this job, which is not looked at
    code, output, _ = Job.run(job, "again", "none", size=1, limit=START_SECONDS)
    files = sorted(os.listdir(job.folder / "files"))
    files = [name for name in files if not name.startswith("exit.") and name != "shm"]
    if code != 0:
        yield f"the next job cannot read or save the checkpoint: {output}"
    if files != ["failing.safetensors"]:
        yield f"files are left after the next save: {files}"


def check(job, promised):
    case = job.case
    code, output, ended = job.run(case.place, case.kind, case.rank, case.milliseconds, size=case.size,
                                  limit=START_SECONDS + promised.seconds)
    died = job.read("died").split()
    job.said, left = (code, output), job.left_processes()
    if not died:
        yield "the rank did not come to the place"
        return
    seconds = ended - float(died[1])
    job.late = seconds - (promised.seconds - SECONDS) > PROMISED_SECONDS
    launcher_hangs = code is None and not any(name.startswith("failing_") for name in job.hanging)
    if launcher_hangs and job.settings.transport == "openmpi" and case.place in STARTS:
        print(f"mpirun hangs after {case.kind} at {case.place}, when all ranks have ended")
        return
    if code is None:
        yield f"no end of {job.hanging}"
    elif seconds > promised.seconds:
        yield f"it ended {seconds:.1f} s after the failure, not within {promised.seconds:.0f} s"
    if code is not None and promised.code != "any" and (code == 0) != (promised.code == "succeeds"):
        yield f"exit code {code}"
    good = [other for other in range(case.size) if other != case.rank and job.exit_code(other) == 0]
    if good and promised.others == "fail":
        yield f"exit code 0 of ranks {good}"
    problem = find_unnamed(job, promised.named, output)
    if problem:
        yield problem
    if left:
        yield f"processes are left: {left}"
    if job.settings.transport == "openmpi" and case.place in STARTS and launcher_crashed(output):
        print(f"mpirun crashes after {case.kind} at {case.place}, when all ranks have ended, and leaves its files")
        return
    if job.settings.own_shm and job.read("shm").split() and not (job.settings.transport in ("openmpi", "mpich") and case.place in STARTS):
        yield f"shared memory is left: {job.read('shm').split()}"
    if os.listdir(job.folder / "tmp"):
        yield f"temporary files are left: {os.listdir(job.folder / 'tmp')}"
    if (case.place, case.kind) == ("before_finalize", "exit0") and "written before exit" not in job.read("notes"):
        yield "the last lines of a file are lost"
    if case.place == "save":
        yield from check_files(job)


def was_starved(problems, output):
    """A rank did not run for so long that shardrun ended it before it could say anything."""
    return all(problem.endswith("does not name the rank") for problem in problems) and "shardrun: ending" in output


# good: what is promised was so; late: it was so, after the time that is promised; starved: how often it was run anew.
Result = collections.namedtuple("Result", "good late starved")


def run_case(settings, case, again=True):
    job = Job(settings, case)
    try:
        problems = list(check(job, promise(settings.transport, case)))
        code, output = job.said
    finally:
        job.close()
    if not problems:
        return Result(True, job.late, 0)
    if again and was_starved(problems, output):
        return run_case(settings, case, again=False)._replace(starved=1)
    text = "".join(f"    {line}\n" for line in output.splitlines())
    print(f"{settings.transport}, {case.kind} at {case.place}, rank {case.rank} of {case.size}, {case.milliseconds} ms: "
          f"{'; '.join(problems)}; exit code {code}:\n{text}", end="", flush=True)
    return Result(False, False, 0)


# ---- cases ----

def draw(rng, kind, place):
    size = rng.choice(SIZES)
    return Case(kind, place, size, rng.randrange(size), rng.randint(0, MOST_MILLISECONDS.get(place, 0)))


def quick_cases(transport, rng):
    """Every kind once on shm, a few on the others."""
    places = {"kill": "save", "segv": "finalize", "stop": "between", "exit3": "before_init", "exit0": "before_finalize",
              "_exit0": "waiting", "abort": "load", "oom": "computing"}
    if transport != "shm":
        places = {"kill": "inside", "stop": "between", "exit3": "finalize", "exit0": "before_finalize", "abort": "init"}
    return [draw(rng, kind, place) for kind, place in places.items()]


def all_cases(rng):
    """Every rank of two, and one of four."""
    for kind in KINDS:
        for place in PLACES:
            for size, rank in ((2, 0), (2, 1), (4, rng.randrange(4))):
                yield draw(rng, kind, place)._replace(size=size, rank=rank)


def make_cases(transport, extent, rng):
    if extent == "some":
        cases = quick_cases(transport, rng)
    elif extent == "all":
        cases = list(all_cases(rng))
    else:
        cases = [draw(rng, rng.choice(KINDS), rng.choice(PLACES)) for _ in range(int(extent))]
    return cases


# ---- launchers ----

def find_launcher(transport, given):
    if transport in ("shm", "nccl"):
        return [given]
    return [find_mpirun(transport, given)]


def summarize(cases, results):
    """Prints what was done; returns the exit code."""
    failed, late, starved = (sum(numbers) for numbers in zip(*((not r.good, r.late, r.starved) for r in results)))
    kinds = collections.Counter(case.kind for case in cases)
    most = max(1, len(cases) // LATE_SHARE)
    print(f"cases: {len(cases)}, of kinds {', '.join(f'{kind} {number}' for kind, number in sorted(kinds.items()))}")
    for case, result in zip(cases, results):
        if result.late:
            print(f"late: {case}")
    print(f"{failed} failed; {late} ended later than {PROMISED_SECONDS} s after the failure, or after the deadline of ranks that wait, and "
          f"{most} may; {starved} ran anew, as a rank was ended before it could say anything")
    return 1 if failed or late > most else 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("transport", choices=["shm", "nccl", "openmpi", "mpich"])
    parser.add_argument("extent")
    parser.add_argument("program")
    parser.add_argument("launcher")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--only")
    settings = parser.parse_args()
    signal.signal(signal.SIGTERM, end_jobs)
    settings.launcher = find_launcher(settings.transport, settings.launcher)
    settings.own_shm = can_own_shm()
    if settings.transport == "nccl":
        os.environ.update({"SHARD_DEVICE": "cuda", "SHARD_CUDA_EMULATION_DEVICES": "4"})
    print(f"seed {settings.seed}" + ("" if settings.own_shm else "; what is left in /dev/shm is not looked at: no mount namespace"))
    rng = random.Random(settings.seed)
    cases = make_cases(settings.transport, settings.extent, rng)
    if settings.only:
        kind, place = settings.only.split(":")
        cases = [case for case in cases if kind in ("", case.kind) and place in ("", case.place)]
    cases = [case for case in cases if promise(settings.transport, case)]
    if not can_limit_memory():
        print(f"out of memory: no memory cgroup can be made here; {sum(case.kind == 'oom' for case in cases)} cases are left out")
        cases = [case for case in cases if case.kind != "oom"]
    if not cases:
        print("no cases")
        return 1
    with concurrent.futures.ThreadPoolExecutor(settings.jobs) as pool:
        results = list(pool.map(lambda case: run_case(settings, case), cases))
    return summarize(cases, results)


if __name__ == "__main__":
    sys.exit(main())
