"""tools/gpu_trainer.py with a program in place of the trainer: a GPU agrees only with losses of the CPU.

Usage: check_gpu_trainer.py GPU_TRAINER
"""
import json
import pathlib
import subprocess
import sys
import tempfile

# Writes the losses of the file beside it, and ends with its exit code, of --device cpu or of others.
TRAINER = """#!/usr/bin/env python3
import json, pathlib, sys
wanted = sys.argv
code, losses = json.loads((pathlib.Path(__file__).parent / ("cpu" if wanted[wanted.index("--device") + 1] == "cpu" else "gpu")).read_text())
pathlib.Path(wanted[wanted.index("--metrics") + 1]).write_text("".join(json.dumps({"loss": loss}) + "\\n" for loss in losses))
sys.exit(code)
"""
SHARDRUN = '#!/bin/sh\nshift 2\nexec "$@"\n'


def main():
    program = sys.argv[1]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        trainer, results = folder / "build/projects/imagenet", folder / "results"
        for made in (trainer, folder / "build/tools", results):
            made.mkdir(parents=True)
        for path, text in ((trainer / "imagenet", TRAINER), (folder / "build/tools/shardrun", SHARDRUN)):
            path.write_text(text)
            path.chmod(0o755)

        def run(cpu, gpu):
            """The exit code, and the verdicts."""
            (trainer / "cpu").write_text(json.dumps(cpu))
            (trainer / "gpu").write_text(json.dumps(gpu))
            done = subprocess.run([sys.executable, program, folder / "build", results], check=False, capture_output=True, text=True)
            return done.returncode, [one["verdict"] for one in json.loads((results / "trainer.json").read_text())["runs"]]

        nothing = ["the CPU has no losses to compare with"] * 5
        code, verdicts = run([1, []], [0, [3.0, 2.0]])
        assert code == 1 and verdicts == ["exit code 1; log-trainer-0.txt", *nothing], verdicts
        code, verdicts = run([1, [3.0]], [0, [3.0]])
        assert code == 1 and verdicts[1:] == nothing, verdicts
        code, verdicts = run([0, [3.0, 2.0]], [0, [3.0, 1.0]])
        assert code == 1 and verdicts == ["agrees", *["differs by more than 0.001"] * 4, "differs by more than 0.05"], verdicts
        code, verdicts = run([0, [3.0, 2.0]], [0, [3.0, None]])
        assert code == 1 and verdicts == ["agrees", *["the loss of step 1 is not finite"] * 5], verdicts
        code, verdicts = run([1, []], [0, [3.0, 2.0]]) # goes on: the CPU has run
        assert code == 0 and verdicts == ["agrees"] * 6, verdicts
        (results / "trainer-0.jsonl").unlink()
        code, verdicts = run([0, [5.0, 4.0]], [0, [3.0, 2.0]])
        assert code == 1 and verdicts[0] == "agrees" and "agrees" not in verdicts[1:], verdicts
    print("a GPU agrees with the CPU alone")


if __name__ == "__main__":
    main()
