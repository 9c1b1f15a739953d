"""Errors that the user of a tool can mend, in one line: a file that cannot be read or written, a program that fails."""
import shlex
import subprocess
import sys


def run(tool, main):
    try:
        return main()
    except subprocess.CalledProcessError as error:
        sys.exit(f"{tool}: {shlex.join(map(str, error.cmd))} ended with {error.returncode}")
    except OSError as error:
        sys.exit(f"{tool}: {error.filename}: {error.strerror}" if error.filename else f"{tool}: {error}")
