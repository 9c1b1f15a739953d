"""For the test scripts of trainers: their runs, the lines of --metrics, and a list of what has failed."""
import json
import os
import subprocess
import sys

LIMIT = 120 * float(os.environ.get("CK_TIMEOUT_MULTIPLIER", "1"))  # seconds of a run
FAILED = []


def check(condition, text):
    if not condition:
        FAILED.append(text)


def report():
    """Prints what has failed; the exit code of the script."""
    print("\n".join(FAILED) or "passed")
    return 1 if FAILED else 0


def compare(what, found, expected, tolerance=1e-5):
    """Lists of numbers; the tolerance is relative to 1 + the number. On several ranks the loss of one step differs by about 1e-7, and
    Adam divides by small numbers."""
    same = len(found) == len(expected) and all(abs(a - b) <= tolerance * (1 + abs(b)) for a, b in zip(found, expected))
    check(same and found, f"{what}: {found}, not {expected}")


def run_script(path, *arguments):
    return subprocess.run([sys.executable, path, *map(str, arguments)], capture_output=True, text=True, timeout=LIMIT)


class Trainer:
    def __init__(self, shardrun, program):
        self.shardrun, self.program = os.path.abspath(shardrun), os.path.abspath(program)

    def run(self, *arguments, ranks=1, text="", folder=None):
        """text: of standard input; folder: in which it runs."""
        launcher = [self.shardrun, "-n", str(ranks)] if ranks > 1 else []
        return subprocess.run([*launcher, self.program, *map(str, arguments)], capture_output=True, input=text, timeout=LIMIT, cwd=folder,
                              encoding="utf-8", errors="replace", env=dict(os.environ, OMP_NUM_THREADS="1"))

    def train(self, metrics, *arguments, ranks=1, expect=None):
        """The lines of --metrics, written to the path; with `expect` nothing but whether the run fails with that text."""
        metrics.unlink(missing_ok=True)
        done = self.run(*arguments, "--metrics", metrics, ranks=ranks)
        output = done.stdout + done.stderr
        if expect:
            check(done.returncode == 1 and output.count(" error: ") == 1 and expect in output,
                  f"{arguments}: not \"{expect}\": {output}")
            return None
        check(done.returncode == 0, f"{arguments} on {ranks} ranks: {output}")
        return [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []
