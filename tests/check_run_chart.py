"""tools/run-chart on metrics files: times, values, memory and refusals.

Usage: check_run_chart.py RUN_CHART
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

SVG = "{http://www.w3.org/2000/svg}"


def line(step, seconds, **values):
    return {"step": step, "images": 640, "images_per_second": 640 / seconds, "memory_mib": {"current": 1.0, "peak": 100.0 + step}, **values}


def write(path, lines):
    path.write_text("".join(json.dumps(entry) + "\n" for entry in lines))


def refuse(command, wrong):
    done = subprocess.run(command, check=False, stderr=subprocess.PIPE, text=True)
    assert done.returncode and wrong in done.stderr and "Traceback" not in done.stderr, done


def main():
    chart = sys.argv[1]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write(folder / "a", [line(10, 30.0, loss=9.5), line(20, 60.0, loss=4.25), line(20, 500.0, validation=True, top1=61.5),
                             line(30, 90.0, loss=None), line(40, 120.0, loss=1.125), line(40, 500.0, validation=True, top1=80.25)])
        write(folder / "b", [line(10, 30.0, loss=8.0), line(20, 30.0, loss=7.0)])
        picture = folder / "runs.svg"
        command = [sys.executable, chart, "--output", picture, "--title", "a < b & c"]
        subprocess.run([*command, f"<a>={folder}/a", f"b={folder}/b", "--bar", "peer=4000", "--label", "Top-1, %"], check=True)
        root = xml.etree.ElementTree.parse(picture).getroot()
        titles = sorted(title.text for title in root.iter(SVG + "title"))
        # 30 + 60 + 90 + 120 seconds; a validation takes none of the training's time.
        assert titles == ["<a>: 1.125 after 5 minutes", "<a>: 140 MiB", "<a>: 80.25 after 5 minutes", "b: 120 MiB", "b: 7 after 1 minutes",
                          "peer: 4,000 MiB"], titles
        points = [len(path.get("points").split()) for path in root.iter(SVG + "polyline")]
        assert sorted(points) == [2, 2, 3], points
        for path in root.iter(SVG + "polyline"):
            for point in path.get("points").split():
                assert all(0 <= float(place) <= float(root.get("width")) for place in point.split(",")), point
        subprocess.run([*command, "--steps", f"a={folder}/a"], check=True)
        titles = {title.text for title in xml.etree.ElementTree.parse(picture).getroot().iter(SVG + "title")}
        assert {"a: 1.125 after 40 steps", "a: 80.25 after 40 steps"} < titles, titles
        write(folder / "long", [line(step + 1, 1.0, loss=float(step % 2)) for step in range(4981)])
        subprocess.run([*command, f"long={folder}/long"], check=True)
        root = xml.etree.ElementTree.parse(picture).getroot()
        points = next(root.iter(SVG + "polyline")).get("points").split()
        assert len(points) == 250, len(points)
        assert len({round(float(point.split(",")[1])) for point in points[:-1]}) == 1, points  # means of 0 and 1
        assert "long: 0 after 83 minutes" in {title.text for title in root.iter(SVG + "title")}
        # A run that ended after step 40 and goes on from a checkpoint after step 20.
        write(folder / "resumed", [line(10, 30.0, loss=9.5), line(20, 60.0, loss=4.25), line(20, 500.0, validation=True, top1=61.5),
                                   line(30, 90.0, loss=7.0), line(40, 95.0, loss=1.5), line(40, 500.0, validation=True, top1=10.0),
                                   line(30, 90.0, loss=3.0), line(40, 120.0, loss=1.125), line(40, 500.0, validation=True, top1=80.25),
                                   line(20, 500.0, validation=True, top1=61.5)])  # of imagenet -e
        subprocess.run([*command, f"r={folder}/resumed"], check=True)
        root = xml.etree.ElementTree.parse(picture).getroot()
        titles = {title.text for title in root.iter(SVG + "title")}
        assert {"r: 1.125 after 5 minutes", "r: 80.25 after 5 minutes"} < titles, titles
        assert sorted(len(path.get("points").split()) for path in root.iter(SVG + "polyline")) == [2, 4], titles
        whole = json.dumps(line(1, 1.0, loss=1.0))
        others = [whole.replace('"loss": 1.0', f'"loss": {value}') for value in ('"x"', "[]", "NaN")]
        others += [whole.replace('"step": 1', '"step": 1e999'), whole.replace('"images": 640', '"images": Infinity')]
        for text in ("{\n", "[]\n", '{"step": 1}\n', '{"step": 1, "memory_mib": {"peak": 1}}\n', "\0\n", *others):
            (folder / "bad").write_text(text)
            refuse([*command, f"x={folder}/bad"], "bad:1: not a line of --metrics")
        refuse([*command, f"{folder}/a"], "is not NAME=VALUE")
        refuse([*command, f"a={folder}/a", "--bar", "peer=nan"], '"peer=nan" is not NAME=MIB')
        refuse([*command, f"a={folder}/a", f"a={folder}/b"], "two runs of one name: a, a")
        refuse([*command, f"a={folder}/a", "--measure", "p1"], "no validation has a p1")
        refuse([*command, f"x={folder}/none"], f"run-chart: {folder}/none: No such file")
        refuse([*command, f"a={folder}/a", "--output", folder], f"run-chart: {folder}: Is a directory")
    print("each run is drawn by its metrics")


if __name__ == "__main__":
    main()
