"""tools/head-chart with a stand-in for shard-bench: each cell is measured once, and the picture has a point for each.

Usage: check_head_chart.py HEAD_CHART
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

SHARDRUN = """#!/bin/sh
# shardrun -n RANKS PROGRAM ...
shift 2
exec "$@"
"""
BENCH = """#!/bin/sh
[ "$1 $2 $4 $6 $8 ${10}" = "head --classes --features --batch --steps --dtype" ] || exit 3
[ "${12} ${14} ${16}" = "--optimizer --head --json" ] || exit 4
echo "$3 ${15} ${11}" >>"$CALLS"
printf '{"library_bytes": %s, "step_seconds": {"median": %s}}' $(($3 * 2048)) 0.$((100 + ${#3})) >"${17}"
"""
CIRCLE = "{http://www.w3.org/2000/svg}circle"
HUGE = 10 ** 12  # classes that no machine has the memory for


def write_program(path, text):
    path.write_text(text)
    path.chmod(0o755)


def refuse(command, wrong):
    done = subprocess.run(command, check=False, stderr=subprocess.PIPE, text=True)
    assert done.returncode and wrong in done.stderr and "Traceback" not in done.stderr, done


def main():
    chart = sys.argv[1]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "tools").mkdir()
        write_program(folder / "tools/shardrun", SHARDRUN)
        write_program(folder / "bench", BENCH)
        kept, picture, calls = folder / "heads.json", folder / "heads.svg", folder / "calls"
        command = [sys.executable, chart, "--measure", kept, "--build", folder, "--program", f"{folder}/bench head", "--classes"]
        for classes in (["1000"], ["1000", "100000", str(HUGE)]):
            subprocess.run([*command, *classes], check=True, env={"PATH": "/usr/bin:/bin", "CALLS": str(calls)})
        measured = calls.read_text().splitlines()
        assert len(measured) == len(set(measured)) == 8, measured
        cells = json.loads(kept.read_text())
        assert cells[f"{HUGE} fused bfloat16"] is None and cells["1000 plain float32"]["library_bytes"] == 2048000, cells
        cells["100000 TorchShard float32"] = {"rss_bytes": 5e9, "step_seconds": {"median": 1.5}}
        kept.write_text(json.dumps(cells))
        subprocess.run([sys.executable, chart, kept, "--output", picture], check=True)
        titles = [circle[0].text for circle in xml.etree.ElementTree.parse(picture).iter(CIRCLE)]
        assert len(titles) == 2 * 9, titles
        assert "fused float32, 100,000 classes: 195.3" in titles and "TorchShard float32, 100,000 classes: 1,500" in titles, titles
        assert "does not fit into the measuring machine" in picture.read_text()
        refuse([*command, "1000", "--features", "64"], "take another file")
        refuse([sys.executable, chart, folder / "none"], f"head-chart: {folder}/none: No such file")
        for text in ("{", "[]", '{"1000 fused": 5}', '{"fused": {"rss_bytes": 1}}',
                     '{"1 a": {"rss_bytes": 1, "step_seconds": {"median": 0}}}'):
            kept.write_text(text)
            refuse([sys.executable, chart, kept], f"{kept} has not the cells")
        kept.write_text("{}")
        refuse([sys.executable, chart, kept], f"{kept}: nothing was measured")
        refuse([*command, "0"], "shard-plan --parameters 0")
        refuse([*command[:5], folder / "none", "--classes", "1000"], f"head-chart: {folder}/none/tools/shardrun: No such file")
    print("a point for each cell")


if __name__ == "__main__":
    main()
