"""Puts what tools/check-gpu found into one report: gpu_report.py RESULTS FOLDER.

With --bench RESULTS, only prints the table of the benchmarks.
"""
import datetime
import json
import pathlib
import re
import subprocess
import sys


def lines_of(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def bench_table(results):
    own, peer = lines_of(results / "bench.json"), lines_of(results / "bench_torch.json")
    version = next((line["version"] for line in peer if line["name"] == "PyTorch"), None)
    theirs = {line["name"]: line["ms"] for line in peer if "ms" in line}
    rows = [f"| | ms | floor, ms | of the floor | PyTorch {version or '(not there)'}, ms | ratio |",
            "|---|---|---|---|---|---|"]
    limits = []
    for line in own:
        if "floor_ms" not in line:
            rate = f"{line['gb_per_s']:.0f} GB/s" if "gb_per_s" in line else f"{line['tflop_per_s']:.1f} TFLOP/s"
            limits.append(f"{line['name']}: {rate}")
            continue
        other = theirs.get(line["name"])
        rows.append(f"| {line['name']} | {line['ms']:.3f} | {line['floor_ms']:.3f} | {100 * line['floor_ms'] / line['ms']:.0f} % | "
                    + (f"{other:.3f} | {other / line['ms']:.2f} |" if other else "| |"))
    return ["Limits measured in the same run: " + "; ".join(limits) + ".", "", *rows] if own else ["Not run."]


def output(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def versions():
    found = {
        "GPU": output("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader").replace("\n", "; "),
        "driver": output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").split("\n")[0],
        "CUDA": (re.findall(r"release ([\d.]+)", output("nvcc", "--version")) or [""])[0],
        "commit": output("git", "rev-parse", "--short", "HEAD"),
    }
    return [f"- {name}: {value or 'not known'}" for name, value in found.items()]


def text_of(path, otherwise):
    return path.read_text(encoding="utf-8").rstrip() if path.exists() else otherwise


def built_with(results):
    """Of the configuration's output: the libraries that were found."""
    wanted = ("cuda ", "nccl ", "oneDNN")
    summary = text_of(results / "summary.txt", "").partition("User defined options")[0]
    lines = [line.strip() for line in summary.splitlines()]
    return [f"- built with {re.sub(' *: *', ': ', line, count=1)}" for line in lines if line.startswith(wanted)]


def tests(results):
    found = []
    for count in sorted(results.glob("count-*.txt")):
        name = count.stem.removeprefix("count-")
        found.append(f"- {name}: {text_of(count, '')}")
        log = text_of(results / f"test-{name}.txt", "")
        found += [f"  - {line.strip()}" for line in log.splitlines() if re.match(r"\s*\d+/\d+ .*(FAIL|TIMEOUT|ERROR)", line)]
    return found or ["Not run."]


def report(results):
    seconds = [f"{path.stem.removeprefix('seconds-')} {text_of(path, '')} s" for path in sorted(results.glob("seconds-*.txt"))]
    date = datetime.date.today().isoformat()
    parts = [f"# On a GPU, {date}", "", *versions(), *built_with(results), "- time: " + ", ".join(seconds), "", "## Tests", "", *tests(results), "",
             "## compute-sanitizer", "", "```", text_of(results / "sanitize.txt", "Not run."), "```", "", "## Benchmarks", "",
             "`tools/bench_gpu`; medians by CUDA's events. The floor is the bytes to be moved over the copy bandwidth and the "
             "operations over the rate of a large product. The ratio is PyTorch's time over ours.", "", *bench_table(results), ""]
    return date, "\n".join(parts)


def main():
    if sys.argv[1] == "--bench":
        print("\n".join(bench_table(pathlib.Path(sys.argv[2]))))
        return
    date, text = report(pathlib.Path(sys.argv[1]))
    gpu = output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").split("\n")[0] or "no GPU"
    path = pathlib.Path(sys.argv[2]) / f"{date}-{re.sub(r'[^a-z0-9]+', '-', gpu.lower()).strip('-')}.md"
    path.write_text(text, encoding="utf-8")
    print(f"wrote {path}")


main()
