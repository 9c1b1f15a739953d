"""Puts what tools/check-gpu found into one report; whatever part of it is there.

gpu_report.py RESULTS FOLDER          writes FOLDER/DATE-GPU.md
gpu_report.py --bench RESULTS         prints the table of the benchmarks
gpu_report.py --save RESULTS FOLDER   report.md and results.tar.gz in FOLDER, each replaced at once, so that a run that is
                                      killed has left whole files
"""
import datetime
import io
import json
import os
import pathlib
import re
import statistics
import sys
import tarfile

EXPECTED = pathlib.Path(__file__).resolve().parent.parent / "tests/gpu/README.md"
STEPS = ["facts", "build", "kernels", "device", "bench", "torch", "ranks", "trainer", "nccl", "profile", "sanitize"]
MOST_OF_A_FILE = 4 << 20


def lines_of(path):
    """JSON objects, one a line; a line that was cut off is left out."""
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []:
        try:
            found.append(json.loads(line))
        except ValueError:
            pass
    return [line for line in found if isinstance(line, dict)]


def object_of(path):
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def text_of(path, otherwise=""):
    return path.read_text(encoding="utf-8", errors="replace").rstrip() if path.exists() else otherwise


# ---- the machine ----

def machine(results):
    facts = object_of(results / "facts.json")
    gpus = facts.get("gpus", [])
    found = {
        "GPU": "; ".join(f"{gpu['name']}, {gpu['memory.total']}, compute capability {gpu['compute_cap']}" for gpu in gpus),
        "driver": ", ".join(sorted({gpu["driver_version"] for gpu in gpus})),
        "state": "; ".join(f"persistence mode {gpu['persistence_mode']}, power limit {gpu['power.limit']}, SM clock at most {gpu['clocks.max.sm']}"
                           for gpu in gpus),
        "nvcc": (re.findall(r"release ([\d.]+)", " ".join(facts.get("nvcc", []))) or [""])[0],
        "loaded": ", ".join(f"{name} {library['version']}" for name, library in object_of(results / "versions.json").items()),
        "system": f"{facts.get('system')}, Linux {facts.get('kernel')}, {facts.get('cores')} cores" if facts else "",
        "commit": facts.get("commit", ""),
        "a context": ", ".join(f"{name} {value} s" for name, value in object_of(results / "contexts.json").items()),
        "while measuring": clocks(results),
    }
    problems = [line["text"] for line in facts.get("findings", []) if not line["good"]]
    return [f"- {name}: {value or 'not known'}" for name, value in found.items()] + [f"- **{text}**" for text in problems]


def clocks(results):
    """Of samples that nvidia-smi took during the benchmarks, those of a GPU at work."""
    rows = [[cell.strip() for cell in line.split(",")] for line in text_of(results / "clocks.csv").splitlines()]
    samples = []
    for row in rows:
        numbers = [re.match(r"[\d.]+", cell) for cell in row[:4]]
        if len(row) >= 5 and all(numbers):
            samples.append([float(number.group()) for number in numbers] + [row[4]])
    busy = [sample for sample in samples if sample[3] >= 50]
    if not busy:
        return ""
    sm, power = [sample[0] for sample in busy], [sample[1] for sample in busy]
    reasons = sorted({sample[4] for sample in busy if int(sample[4], 16) & ~1} if all(re.fullmatch(r"0x[0-9a-fA-F]+", sample[4]) for sample in busy) else set())
    return (f"SM clock {min(sm):.0f} to {max(sm):.0f} MHz, median {statistics.median(sm):.0f}; power {statistics.median(power):.0f} W, at most "
            f"{max(power):.0f}; {len(busy)} samples" + (f"; clocks held down (nvidia-smi's reasons {', '.join(reasons)})" if reasons else ""))


def built_with(results):
    """Of the configuration's output: the libraries that were found."""
    wanted = ("cuda ", "nccl ", "oneDNN")
    summary = text_of(results / "summary.txt").partition("User defined options")[0]
    lines = [line.strip() for line in summary.splitlines()]
    return [f"- built with {re.sub(' *: *', ': ', line, count=1)}" for line in lines if line.startswith(wanted)]


# ---- steps and tests ----

def steps(results):
    rows = ["| step | | s |", "|---|---|---|"]
    for step in STEPS:
        done = object_of(results / f"done-{step}")
        why = text_of(results / f"skipped-{step}.txt")
        state = f"skipped: {why}" if why else ["done", "done, with failures"][min(done["code"], 1)] if done else ""
        if not state:
            state = "begun, not ended" if (results / f"begun-{step}").exists() else "not run"
        rows.append(f"| {step} | {state} | {done.get('seconds', '')} |")
    return rows


def last_of(records):
    """The last record of each program and part in a step: a later way of running it counts."""
    last = {}
    for record in records:
        last[record["step"], record["program"], record["part"], record["way"] if record["step"] == "sanitize" else ""] = record
    return list(last.values())


def tests(results):
    records = last_of(lines_of(results / "tests.jsonl"))
    found = []
    for step in ("kernels", "device", "ranks", "nccl", "sanitize"):
        own = [record for record in records if record["step"] == step]
        if not own:
            continue
        left_out = sum(record["left_out"] for record in own)
        skipped = sum(record["result"] == "skipped" for record in own)
        found.append(f"- {step}: {len(own)} programs, {sum(record['passed'] for record in own)} tests passed, {sum(record['failed'] for record in own)} failed, "
                     f"{skipped} programs skipped themselves" + (f", {left_out} runs of other numbers of ranks left out" if left_out else ""))
        found += [f"  - {' '.join(filter(None, (record['program'], record['way'], record['part'])))}: {record['result']}, exit code {record['exit']}, "
                  f"{record['seconds']} s" for record in own if record["result"] not in ("passed", "skipped")]
        found += [f"  - {record['program']}: passed {record['way']} only" for record in own
                  if record["result"] == "passed" and record["way"] in ("a process a test", "alone")]
    notable = sorted(set(text_of(results / "notable.txt").splitlines()))
    return (found or ["Not run."]) + (["", "Said by the programs:", "", "```", *notable[:40], "```"] if notable else [])


def trainer(results):
    runs = object_of(results / "trainer.json").get("runs", [])
    rows = ["| | first loss | last loss | largest difference | seconds | |", "|---|---|---|---|---|---|"]
    for run in runs:
        rows.append(f"| {run['name']} | {run['first']} | {run['last']} | {run['difference']} | {run['seconds']} | {run['verdict']} |")
    return rows if runs else ["Not run."]


# ---- benchmarks ----

def expected_times():
    """name: (least, most) as parts of the floor, from the table of tests/gpu/README.md."""
    found = {}
    for line in text_of(EXPECTED).splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        row = re.fullmatch(r"([\d.]+) to ([\d.]+)", cells[-1]) if len(cells) == 4 else None
        if row:
            found[cells[0]] = float(row.group(1)), float(row.group(2))
    return found


def verdict(line, expected):
    if line["name"] not in expected or not line["floor_ms"]:
        return "", ""
    least, most = (part * line["floor_ms"] for part in expected[line["name"]])
    return f"{least:.3f} to {most:.3f}", "faster" if line["ms"] < least else "as expected" if line["ms"] <= most else f"{line['ms'] / most:.2f} x"


def peak_of(line):
    return f"{line['peak_mib']:.0f}" if "peak_mib" in line else ""


def peer_cell(own, peer):
    if not peer:
        return ""
    ratio, peak = f"{peer['ms'] / own['ms']:.2f}", peak_of(peer)
    return f"{peer['ms']:.3f} ({'; '.join([ratio, peak] if peak else [ratio])})"


def bench_table(results):
    own, peer = lines_of(results / "bench.json"), lines_of(results / "bench_torch.json")
    versions = [f"{line['name']} {line['version']}" for line in peer if "version" in line]
    ways = ["eager", "compile", *sorted({line["way"] for line in peer if "ms" in line} - {"eager", "compile"})] if versions else []
    theirs = {(line["name"], line["way"]): line for line in peer if "ms" in line}
    expected = expected_times()
    rows = ["| | ms | peak, MiB | first run, ms | floor, ms | of the floor | expected, ms | |"
            + "".join(f" {way}, ms (ratio; peak, MiB) |" for way in ways), "|---|" + "---|" * (7 + len(ways))]
    limits = []
    for line in own:
        if "floor_ms" not in line:
            rate = f"{line['gb_per_s']:.0f} GB/s" if "gb_per_s" in line else f"{line['tflop_per_s']:.1f} TFLOP/s"
            limits.append(f"{line['name']}: {rate}")
            continue
        cells = [peer_cell(line, theirs.get((line["name"], way))) for way in ways]
        rows.append(f"| {line['name']} | {line['ms']:.3f} | {peak_of(line)} | {line.get('first_ms', 0):.1f} | {line['floor_ms']:.3f} | {100 * line['floor_ms'] / line['ms']:.0f} % | "
                    + " | ".join([*verdict(line, expected), *cells]) + " |")
    failed = [f"PyTorch, {line['name']}, {line['way']}: {line['error']}" for line in peer if "error" in line]
    head = ", ".join(versions) + ": " + ", ".join(ways) + "." if versions else "PyTorch: not there."
    return ["Limits measured in the same run: " + "; ".join(limits) + ".", "", head, "", *rows, *(["", *failed] if failed else [])] if own else ["Not run."]


# ---- the report ----

def report(results):
    date = object_of(results / "facts.json").get("date") or datetime.date.today().isoformat()
    stop = text_of(results / "stopped.txt")
    profiles = [path.name for path in sorted(results.glob("profile-*.txt")) if path.stat().st_size]
    parts = [f"# On a GPU, {date}", "", *machine(results), *built_with(results), "", *([f"**{stop}**", ""] if stop else []), "## Steps", "", *steps(results), "",
             "## Tests", "", *tests(results), "", "## Trainer", "", *trainer(results), "", "## Benchmarks", "",
             "`tools/bench_gpu`; medians by CUDA's events, of several runs between two events. The floor is the bytes to be moved over the copy bandwidth "
             "and the operations over the rate of a large product. Expected: the floor times what `tests/gpu/README.md` estimates. The ratio is "
             "PyTorch's time over ours.", "", *bench_table(results), "", "## Profiles", "",
             ", ".join(profiles) + " in results.tar.gz" if profiles else text_of(results / "skipped-profile.txt", "Not run."), ""]
    return date, "\n".join(parts)


def replace(path, data):
    new = path.with_name(f".{path.name}.new")
    new.write_bytes(data)
    os.replace(new, path)


def save(results, folder):
    """Three files; those of the results are read whole first, as they may be growing."""
    folder.mkdir(parents=True, exist_ok=True)
    memory = io.BytesIO()
    with tarfile.open(fileobj=memory, mode="w:gz", compresslevel=6) as tar:
        for path in sorted(results.iterdir()):
            if not path.is_file() or path.suffix in (".pid", ".lock"):
                continue
            data = path.read_bytes()[-MOST_OF_A_FILE:]
            entry = tarfile.TarInfo("results/" + path.name)
            entry.size, entry.mtime = len(data), int(path.stat().st_mtime)
            tar.addfile(entry, io.BytesIO(data))
    replace(folder / "results.tar.gz", memory.getvalue())
    replace(folder / "report.md", report(results)[1].encode())


def main():
    if sys.argv[1] == "--bench":
        print("\n".join(bench_table(pathlib.Path(sys.argv[2]))))
        return
    if sys.argv[1] == "--save":
        save(pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]))
        return
    results, folder = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    date, text = report(results)
    gpus = object_of(results / "facts.json").get("gpus") or [{"name": "no GPU"}]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{date}-{re.sub(r'[^a-z0-9]+', '-', gpus[0]['name'].lower()).strip('-')}.md"
    path.write_text(text, encoding="utf-8")
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
