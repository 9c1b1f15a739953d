"""check_terminal.py SHARDRUN RANK_PROGRAM: a job in the foreground of a terminal takes its keys and its input."""
import os
import pty
import select
import signal
import sys
import time

SHARDRUN, PROGRAM = sys.argv[1:]


class Job:
    """shardrun in the foreground of a new terminal, as a shell with job control starts it."""

    def __init__(self, *arguments):
        self.output = b''
        shell, self.terminal = pty.fork()
        if shell == 0:
            job = os.fork()
            if job == 0:
                os.setpgid(0, 0)
                signal.signal(signal.SIGTTOU, signal.SIG_IGN)
                os.tcsetpgrp(0, os.getpid())
                signal.signal(signal.SIGTTOU, signal.SIG_DFL)
                os.execv(SHARDRUN, [SHARDRUN, '-n', '2', *arguments])
            while True:
                _, status = os.waitpid(job, os.WUNTRACED)
                if not os.WIFSTOPPED(status):
                    os._exit(os.waitstatus_to_exitcode(status))
                os.write(1, b'stopped\n')
                os.killpg(job, signal.SIGCONT)  # as the shell's "fg" does
        self.shell = shell

    def read_until(self, text, times=1):
        """Reads the terminal until the text has come so often, or it hangs up."""
        end = time.monotonic() + 30
        while self.output.count(text) < times and time.monotonic() < end:
            if not select.select([self.terminal], [], [], 1)[0]:
                continue
            try:
                self.output += os.read(self.terminal, 4096)
            except OSError:
                break
        assert self.output.count(text) >= times, f'no {times} x {text} in {self.output}'

    def type(self, text):
        os.write(self.terminal, text)

    def end(self):
        """The exit code."""
        end = time.monotonic() + 30
        while (ended := os.waitpid(self.shell, os.WNOHANG))[0] == 0 and time.monotonic() < end:
            time.sleep(0.05)
        if ended[0] == 0:
            os.killpg(os.tcgetpgrp(self.terminal), signal.SIGKILL)
            raise AssertionError(f'no end; the output: {self.output[-200:]}')
        return os.waitstatus_to_exitcode(ended[1])


def check_keys(*command):
    job = Job(*command)
    job.read_until(b'ready', 2)
    job.type(b'\x1a')
    job.read_until(b'stopped')
    job.type(b'\x03')
    job.read_until(b'took signal 2', 2)
    assert job.end() == 2


def check_other_group():
    """The terminal sends its signals to the foreground's process group, and timeout begins another one."""
    job = Job('timeout', '200', PROGRAM, 'signal')
    job.read_until(b'ready', 2)
    job.type(b'\x03')
    job.read_until(b'took signal 2', 2)
    assert job.end() == 2


def check_input():
    job = Job(PROGRAM, 'input')
    job.type(b'A\n')
    job.read_until(b'0: 65')
    assert job.end() == 0


def check_pause(key):
    """A terminal that is not read, or whose key stops its output, keeps no signal from acting."""
    job = Job('--tag', 'yes')
    job.read_until(b'[1] y')
    job.type(key)
    time.sleep(1)
    os.kill(os.tcgetpgrp(job.terminal), signal.SIGTERM)
    assert job.end() == 128 + signal.SIGTERM


check_keys(PROGRAM, 'signal')
check_keys('sh', '-c', 'trap : INT; "$0" "$@" && true; exit $?', PROGRAM, 'signal')
check_other_group()
check_input()
check_pause(b'')
check_pause(b'\x13')
print('good')
