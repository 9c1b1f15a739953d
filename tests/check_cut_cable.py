#!/usr/bin/env python3
"""Ranks on two hosts, of which the cable is cut, slow or lossy. The hosts are network namespaces; the cable is this process, which
passes packets from one TUN device to another.

- The interface of one host goes down, or packets vanish: all ranks of both hosts end with an exit code other than 0 and an error
  that names the ranks of the other host, in time.
- Packets are late, and some are lost: training goes on, and the rank that computes longest is named as a straggler.

Usage: check_cut_cable.py openmpi|mpich FAILING_PROGRAM PROBE. PROBE prints MPI's number of ranks. Exit code 77, which is "skipped",
where network namespaces or TUN devices are not permitted, or the MPI is missing.
"""
import fcntl
import heapq
import os
import pathlib
import random
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time

from support.launched import MULTIPLIER, PROMISED_SECONDS, SECONDS, TIMEOUT, end_jobs, find_mpirun, folders, kill_all, processes_of, ranks_of, skip

START_SECONDS = 30 * MULTIPLIER
LAUNCHER_SECONDS = 30 * MULTIPLIER  # Open MPI's waits until TCP gives up
RANKS = 4  # 0 and 1 on host a, 2 and 3 on host b
ADDRESSES = {"a": "10.213.77.1", "b": "10.213.77.2"}

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454ca, 0x0001, 0x1000


def run(*command, **options):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options).stdout


class Cable(threading.Thread):
    """Two namespaces and what is between them."""

    def __init__(self):
        super().__init__(daemon=True)
        self.cut, self.delay, self.loss, self.passed, self.lost = False, 0.0, 0.0, 0, 0
        self.random, self.files, self.open = random.Random(1), {}, True
        self.hosts = {side: f"shard-{os.getpid()}-{side}" for side in "ab"}
        try:
            for side, host in self.hosts.items():
                self.lay(side, host)
        except (OSError, subprocess.CalledProcessError) as error:
            self.close()
            skip(f"no network namespaces with TUN devices here: {getattr(error, 'stderr', None) or error}")

    def lay(self, side, host):
        device, other = f"shard{side}", ADDRESSES["b" if side == "a" else "a"]
        run("ip", "netns", "add", host)
        self.files[side] = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(self.files[side], TUNSETIFF, struct.pack("16sH22x", device.encode(), IFF_TUN | IFF_NO_PI))
        run("ip", "link", "set", device, "netns", host)
        run("ip", "-n", host, "link", "set", "lo", "up")
        run("ip", "-n", host, "addr", "add", ADDRESSES[side], "peer", other, "dev", device)
        run("ip", "-n", host, "link", "set", device, "up")

    def set_down(self, side):
        run("ip", "-n", self.hosts[side], "link", "set", f"shard{side}", "down")

    def hurry_tcp(self):
        """From now on TCP gives up a connection after 3 retransmissions; by default after 15, a quarter of an hour."""
        for host in self.hosts.values():
            run("ip", "netns", "exec", host, "sh", "-c", "echo 3 >/proc/sys/net/ipv4/tcp_retries2")

    def run(self):
        ends, late = {self.files["a"]: self.files["b"], self.files["b"]: self.files["a"]}, []
        while self.open:
            wait = max(0.0, late[0][0] - time.monotonic()) if late else 0.2
            for file in select.select(list(ends), [], [], wait)[0]:
                try:
                    packet = os.read(file, 65536)
                except OSError:  # the device is down
                    time.sleep(0.001)
                    continue
                if self.cut or self.random.random() < self.loss:
                    self.lost += 1
                else:
                    self.passed += 1
                    heapq.heappush(late, (time.monotonic() + self.delay, self.passed, ends[file], packet))
            while late and late[0][0] <= time.monotonic():
                _, _, file, packet = heapq.heappop(late)
                try:
                    os.write(file, packet)
                except OSError:
                    pass

    def close(self):
        self.open = False
        if self.is_alive():
            self.join()
        for file in self.files.values():
            os.close(file)
        for host in self.hosts.values():
            subprocess.run(["ip", "netns", "del", host], stderr=subprocess.DEVNULL)


# ---- jobs ----

def launcher(kind, hosts, folder):
    """The launcher's command, which runs on host a. It starts its daemons by the script, as it would by ssh."""
    agent = folder / "agent"
    agent.write_text(f"""#!/bin/sh
# agent [OPTION...] ADDRESS COMMAND...: runs the command on the host of that address.
while [ "${{1#-}}" != "$1" ]; do shift; done
case $1 in
{ADDRESSES["a"]}) host={hosts["a"]} ;;
*) host={hosts["b"]} ;;
esac
shift
exec ip netns exec $host unshare --uts sh -c "hostname $host && $*"
""")
    agent.chmod(0o755)
    here = ["ip", "netns", "exec", hosts["a"], "unshare", "--uts", "sh", "-c", f'hostname {hosts["a"]} && exec "$@"', "sh"]
    a, b = ADDRESSES["a"], ADDRESSES["b"]
    if kind == "openmpi":
        settings = {"plm_rsh_agent": agent, "pml": "ob1", "btl": "tcp,self", "btl_tcp_if_include": f"{a}/24",
                    "oob_tcp_if_include": f"{a}/24", "plm_rsh_no_tree_spawn": "1", "hwloc_base_binding_policy": "none"}
        words = [word for name, value in settings.items() for word in ("--mca", name, str(value))]
        exported = [word for name in exports() for word in ("-x", name)]
        return [*here, "mpirun.openmpi", "--host", f"{a}:2,{b}:2", *words, *exported]
    return [*here, "mpirun.mpich", "-launcher", "rsh", "-launcher-exec", str(agent), "-localhost", a, "-hosts", f"{a},{b}", "-ppn", "2",
            "-genvlist", ",".join(exports())]


def exports():
    return [name for name in os.environ if name.startswith(("SHARD_", "FAILING_", "UCX_")) or name in ("LD_LIBRARY_PATH", "OMP_NUM_THREADS")]


class Job:
    def __init__(self, kind, program, cable, *arguments, **settings):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="cable-"))
        folders.add(self.folder)
        os.environ.update({"SHARD_TIMEOUT": str(TIMEOUT), "OMP_NUM_THREADS": "1", "FAILING_MARK": str(self.folder), **settings})
        self.output = open(self.folder / "output", "wb")
        command = launcher(kind, cable.hosts, self.folder) + ["-n", str(RANKS), program, *map(str, arguments)]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.output, stderr=self.output)

    def wait_for_files(self, name, seconds):
        """The texts of NAME.RANK of all ranks, or of those that have written one in time."""
        limit = time.monotonic() + seconds
        while len(list(self.folder.glob(f"{name}.*"))) < RANKS and time.monotonic() < limit:
            time.sleep(0.05)
        return {int(path.suffix[1:]): path.read_text() for path in self.folder.glob(f"{name}.*")}

    def wait_for_ranks(self, seconds):
        limit = time.monotonic() + seconds
        while ranks_of(self.folder) and time.monotonic() < limit:
            time.sleep(0.05)
        return ranks_of(self.folder)

    def text(self):
        return (self.folder / "output").read_text(errors="replace")

    def close(self):
        kill_all(processes_of(self.folder))
        self.process.wait()
        self.output.close()
        folders.discard(self.folder)
        shutil.rmtree(self.folder, ignore_errors=True)


def check_cut(kind, program, how, late):
    """Each rank's error goes to the launcher, which gets it from its own host alone: errors are read from files."""
    cable = Cable()
    cable.start()
    job = Job(kind, program, cable, "train", "none", -1, 0)
    try:
        if len(job.wait_for_files("trains", START_SECONDS)) < RANKS:
            yield f"training did not begin:\n{job.text()}"
            return
        start = time.monotonic()
        if how == "interface down":
            cable.set_down("a")
        else:
            cable.cut = True
        left = job.wait_for_ranks(TIMEOUT + SECONDS)
        seconds = time.monotonic() - start
        late.append(seconds > TIMEOUT + PROMISED_SECONDS)
        errors, exits = job.wait_for_files("error", 0), job.wait_for_files("exit", 0)
        print(f"{kind}, {how}: the ranks have ended after {seconds:.1f} s; {errors}")
        if left:
            yield f"ranks {left} have not ended after {seconds:.1f} s"
        for rank in range(RANKS):
            if exits.get(rank, "1").split()[0] == "0":
                yield f"rank {rank} has ended with exit code 0"
            others = {2, 3} if rank < 2 else {0, 1}
            named = re.search(r"ranks? ([0-9, and]+) did not come", errors.get(rank, ""))
            if not named or not set(map(int, re.findall(r"\d+", named[1]))) <= others:
                yield f"rank {rank} does not name ranks of the other host: {errors.get(rank)}"
        cable.hurry_tcp()
        code = job.process.wait(LAUNCHER_SECONDS)
        print(f"{kind}, {how}: exit code {code} of the launcher, after {time.monotonic() - start:.1f} s")
        if code == 0:
            yield "exit code 0"
    except subprocess.TimeoutExpired:
        yield "no end of the launcher"
    finally:
        job.close()
        cable.close()


def check_bad(kind, program):
    cable = Cable()
    cable.delay, cable.loss = 0.01, 0.01
    cable.start()
    job = Job(kind, program, cable, "slow", "none", 2, 300, SHARD_TIMEOUT="60", SHARD_STRAGGLER_SECONDS="1")
    try:
        code = job.process.wait(90 * MULTIPLIER)
        named = set(re.findall(r"warn: rank (\d+) is a straggler", job.text()))
        print(f"{kind}, late packets: {cable.passed} passed, {cable.lost} lost, {cable.delay * 1000:.0f} ms; stragglers: {sorted(named)}")
        if code != 0:
            yield f"exit code {code}:\n{job.text()}"
        if "2" not in named: # one that was not scheduled for as long is named, too
            yield f"stragglers are {sorted(named)} without 2:\n{job.text()}"
        if cable.lost == 0:
            yield "no packet was lost"
    except subprocess.TimeoutExpired:
        yield f"no end:\n{job.text()}"
    finally:
        job.close()
        cable.close()


def main():
    kind, program, probe = sys.argv[1:]
    signal.signal(signal.SIGTERM, end_jobs)
    find_mpirun(kind, probe)
    os.environ["UCX_TLS"] = "tcp,self"
    late = []  # whether the ranks of a case have ended after the time that is promised
    cases = {"interface down": lambda: check_cut(kind, program, "interface down", late),
             "packets vanish": lambda: check_cut(kind, program, "packets vanish", late),
             "late packets": lambda: check_bad(kind, program)}
    failed = 0
    for name, case in cases.items():
        problems = list(case())
        for problem in problems:
            print(f"{kind}, {name}: {problem}")
        failed += bool(problems)
    print(f"cases: {len(cases)}\n{failed} failed; of {len(late)} cuts {sum(late)} ended later than {PROMISED_SECONDS} s after the deadline")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
