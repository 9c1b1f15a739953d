"""check_bench_search.py BUILD: tools/bench_search.py on small tables, with the shard-search of the build folder. Skipped without NumPy; without
faiss only what it says without that."""
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile

from check_search_tool import save_table

try:
    import numpy as np
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

TOOLS = pathlib.Path(__file__).resolve().parent.parent / "tools"
LIMIT = 60 * float(os.environ.get("CK_TIMEOUT_MULTIPLIER", "1"))
sys.dont_write_bytecode = True
sys.path.insert(0, str(TOOLS))
import bench_search # noqa: E402


def run(*options, without=None):
    """The lines of the table as lists of columns. without: a folder whose module faiss cannot be loaded."""
    path = os.pathsep.join(filter(None, (str(without) if without else None, os.environ.get("PYTHONPATH"))))
    done = subprocess.run([sys.executable, TOOLS / "bench_search.py", "--rounds", "1", "--batches", "1:2,16:3", *map(str, options)], text=True,
                          stdout=subprocess.PIPE, timeout=LIMIT, check=True, env=dict(os.environ, SHARD_BUILD=sys.argv[1], PYTHONPATH=path))
    return [line.strip("| \n").split(" | ") for line in done.stdout.splitlines()[3:]]


def check_recall(table):
    """Of rows that are as near as the right ones, of wrong ones, and of one row twice."""
    queries, rows = table[:1], np.argsort(-(table @ table[0]), kind="stable")
    for found, expected in ((rows[:4], 1), (rows[[0, 1, 2, 4]], 0.75), (rows[[0, 1, 2, 2]], 0.75), (rows[-4:], 0)):
        got = bench_search.recall(table, queries, [found], np.array([rows[:4]]))
        assert got == expected, (found, got, expected)
    twice = np.concatenate([table, table]) # each row has an equal one
    got = bench_search.recall(twice, queries, [rows[:4] + len(table)], np.array([rows[:4]]))
    assert got == 1, got


def main():
    random = np.random.default_rng(3)
    check_recall(random.standard_normal((50, 8), np.float32))
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "without").mkdir()
        (folder / "without/faiss.py").write_text("raise ImportError('not installed')\n")
        equal = save_table(folder / "equal.safetensors", random.integers(-1, 2, (400, 4)).tolist()) # many rows are equal
        columns = 5 if importlib.util.find_spec("faiss") else 3
        for options in (["--rows", 3000, "--width", 24, "--k", 5], [equal, "--tensor", "fc.weight"], [equal, "--threads", 2, "--clock", "wall"]):
            for without, count in ((None, columns), (folder / "without", 3)):
                lines = run(*options, without=without)
                assert [line[0] for line in lines] == ["1", "16"] and all(len(line) == count for line in lines), (options, lines)
                assert all(line[-1] == "1" for line in lines), f"recall: {options}: {lines}"
                assert all(float(line[1].replace(",", "")) > 0 for line in lines), lines
    print("bench_search finds what shard-search does")


if __name__ == "__main__":
    main()
