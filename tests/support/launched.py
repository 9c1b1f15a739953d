"""For test scripts that start jobs: their processes, deadlines, and MPI's launchers."""
import math
import os
import pathlib
import shutil
import signal
import subprocess
import sys

MULTIPLIER = max(1.0, float(os.environ.get("CK_TIMEOUT_MULTIPLIER", "1")))  # of a slow machine
TIMEOUT = math.ceil(3 * MULTIPLIER)  # SHARD_TIMEOUT
PROMISED_SECONDS = 5  # for the other ranks to end: from a death, or from the deadline where a rank hangs
SECONDS = PROMISED_SECONDS * MULTIPLIER  # ... at most, where the machine is slow

folders = set()  # of the jobs that run, each the value of FAILING_MARK in the environment of its processes


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(77)


def processes_of(folder):
    """Name by number of the processes of the job: the launcher, its daemons, the ranks."""
    mark, found = b"FAILING_MARK=%s\0" % os.fsencode(folder), {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                if mark in pathlib.Path(entry.path, "environ").read_bytes():
                    found[int(entry.name)] = pathlib.Path(entry.path, "comm").read_text().strip()
            except OSError:  # it has ended
                pass
    return found


def ranks_of(folder):
    return [process for process, name in processes_of(folder).items() if name.startswith("failing_")]


def kill_all(processes):
    for process in processes:
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            pass


def end_jobs(number, _):
    for folder in folders:
        kill_all(processes_of(folder))
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(128 + number)


def find_mpirun(kind, probe):
    """The path of mpirun, readied for tests: several ranks a core, as root, without a complaint about a container's limits. Skips the
    test where there is none that works. `probe` prints MPI's number of ranks."""
    if not pathlib.Path(os.environ.get("SHARD_PLUGIN_PATH", ""), f"libshard-mpi-{kind}.so").exists():
        skip(f"built without {kind}")
    mpirun = shutil.which(f"mpirun.{kind}")
    if not mpirun:
        skip(f"no mpirun.{kind}")
    os.environ.update({"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
                       "OMPI_MCA_btl_vader_single_copy_mechanism": "none", "OMPI_MCA_orte_abort_print_stack": "0"})
    sizes = subprocess.run([mpirun, "-n", "2", probe], stdout=subprocess.PIPE, text=True).stdout.split()
    if set(sizes) == {"1"}:
        skip(f"{mpirun} -n 2 starts two programs that MPI does not connect")
    return mpirun
