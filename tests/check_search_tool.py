"""Whether shard-search finds the nearest rows, and exports tensors, as its --help says.

Usage: check_search_tool.py SHARD_SEARCH SHARDRUN SHARD_CHECKPOINT. Checkpoints are written byte by byte, and the answers compared
with a search in Python. Where faiss and numpy are installed, they read the exported files, too.
"""
import json
import math
import os
import pathlib
import random
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time

SECONDS = 60 * int(os.environ.get("CK_TIMEOUT_MULTIPLIER", "1"))
SIZES = {"F64": "d", "F32": "f", "F16": "e"}
tool = shardrun = ""


def pack(values, dtype):
    """Bytes of numbers that the dtype has exactly."""
    if dtype == "BF16":
        return b"".join(struct.pack("<f", value)[2:] for value in values)
    return struct.pack(f"<{len(values)}{SIZES[dtype]}", *values)


def save(path, tensors):
    """A safetensors file of (dtype, shape, bytes) by name."""
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))
    return path


def save_table(path, table, dtype="F32"):
    flat = [value for row in table for value in row]
    return save(path, {"fc.weight": (dtype, [len(table), len(table[0])], pack(flat, dtype)), "fc.bias": ("F32", [1], bytes(4)),
                       "steps": ("I64", [1, 1], bytes(8))})


def npy(path, shape, descr, data, version=1, order="False", multiple=64):
    text = f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape!r}, }}"
    start = 10 if version == 1 else 12
    text += " " * (-(start + len(text) + 1) % multiple) + "\n"
    length = struct.pack("<H" if version == 1 else "<I", len(text))
    path.write_bytes(b"\x93NUMPY" + bytes([version, 0]) + length + text.encode() + data)
    return path


def run(*arguments, ranks=1, code=0, find=(), given=None):
    """Output and errors."""
    command = ([shardrun, "-n", str(ranks)] if ranks > 1 else []) + [tool, *map(str, arguments)]
    done = subprocess.run(command, input=given, stdin=None if given is not None else subprocess.DEVNULL, capture_output=True,
                          timeout=SECONDS, check=False)
    text = done.stdout.decode() + done.stderr.decode()
    assert done.returncode == code, f"{command}: exit code {done.returncode}, not {code}:\n{text}"
    for pattern in [find] if isinstance(find, str) else find:
        assert re.search(pattern, text), f"{command}: no \"{pattern}\" in:\n{text}"
    return done.stdout.decode(), text


def refuse_constant(name):
    raise AssertionError(f"{name} is not JSON")


def answers(text):
    return [json.loads(line, parse_constant=refuse_constant) for line in text.splitlines()]


def normalized(row):
    norm = math.sqrt(math.fsum(x * x for x in row))
    return [x / norm for x in row] if norm else row


def search(table, query, k, cosine=False):
    """(rows, scores) by brute force."""
    if cosine:
        table, query = [normalized(row) for row in table], normalized(query)
    scores = [math.fsum(a * b for a, b in zip(row, query)) for row in table]
    rows = sorted(range(len(table)), key=lambda row: (-scores[row], row))[:k]
    return rows, [scores[row] for row in rows]


def compare(got, wanted, digits=1e-5):
    rows, scores = wanted
    assert got["rows"] == rows, (got, wanted)
    assert all(math.isclose(a, b, rel_tol=digits, abs_tol=digits) for a, b in zip(got["scores"], scores)), (got, wanted)


def make_table(rows, width, seed):
    """Multiples of 1/8 below 4: every dtype has them, and inner products are exact, with ties."""
    numbers = random.Random(seed)
    return [[numbers.randrange(-31, 32) / 8 for _ in range(width)] for _ in range(rows)]


# ---- searches ----


def check_rows(folder):
    """Rows as queries, both metrics, all dtypes, several numbers of ranks."""
    table = make_table(41, 19, 1)
    table[30] = table[7]  # a tie, on different ranks
    table[12] = [0.0] * 19
    queries = [7, 30, 0, 40, 12]
    file = folder / "rows.jsonl"
    file.write_text("".join(f"{row}\n" for row in queries) + "\n  \n" + json.dumps(table[3]))
    for dtype, ranks, more in (("F32", 1, ()), ("F32", 2, ()), ("F32", 3, ()), ("BF16", 2, ()), ("BF16", 1, ("--keep-dtype",)),
                               ("F16", 3, ()), ("F64", 1, ()), ("F64", 2, ())):
        path = save_table(folder / "table.safetensors", table, dtype)
        for metric in ("ip", "cosine"):
            if metric == "cosine" and more:
                continue  # normalized rows are rounded
            got = answers(run(path, "--queries", file, "-k", 6, "--metric", metric, "--batch-size", 4, *more, ranks=ranks)[0])
            assert [line["query"] for line in got] == [*queries, {"vector": 5}], got
            assert all(list(line) == ["query", "rows", "scores"] for line in got), got
            for line, row in zip(got, [*queries, 3]):
                compare(line, search(table, table[row], 6, metric == "cosine"), 1e-5)
    rounded = answers(run(path, "--queries", file, "-k", 3, "--metric", "cosine", "--keep-dtype", ranks=2)[0])
    assert rounded[0]["rows"][:2] == [7, 30] and rounded[4]["rows"] == [0, 1, 2] and rounded[4]["scores"] == [0, 0, 0], rounded
    # More ranks than rows, and all rows.
    path = save_table(folder / "small.safetensors", table[:2])
    got = answers(run(path, "--queries", file.with_name("two.jsonl") if file.with_name("two.jsonl").write_text("1") else "", "-k", 2,
                      ranks=3)[0])
    compare(got[0], search(table[:2], table[1], 2))


def check_vectors(folder):
    """Vectors of .npy files, in several batches, more rows than a tile has; the output in a file."""
    table, wanted = make_table(700, 8, 2), []
    vectors = make_table(37, 8, 3)
    path, output = save_table(folder / "table.safetensors", table), folder / "answers.jsonl"
    flat = [value for row in vectors for value in row]
    wanted = [search(table, vector, 300, False) for vector in vectors]
    for descr, form, version in (("<f4", "f", 1), ("<f8", "d", 2), ("<f2", "e", 3)):
        file = npy(folder / "vectors.npy", (37, 8), descr, struct.pack(f"<{len(flat)}{form}", *flat), version)
        k = 300 if version == 1 else 5
        out, _ = run(path, "--queries", file, "-k", k, "-b", 10, "-o", output, ranks=version)
        got = answers(output.read_text())
        assert not out and len(got) == 37 and [line["query"] for line in got] == [{"vector": i} for i in range(37)]
        for line, (rows, scores) in zip(got, wanted):
            compare(line, (rows[:k], scores[:k]))
    for descr, form in (("<i8", "q"), ("<i4", "i")):
        file = npy(folder / "indices.npy", (3,), descr, struct.pack(f"<3{form}", 5, 699, 0))
        got = answers(run(path, "--queries", file, "-k", 4, ranks=2)[0])
        assert [line["query"] for line in got] == [5, 699, 0]
        for line in got:
            compare(line, search(table, table[line["query"]], 4))
    file = npy(folder / "odd.npy", (37, 8), "<f8", struct.pack(f"<{len(flat)}d", *flat), multiple=1)  # its numbers are not aligned
    for line, (rows, scores) in zip(answers(run(path, "--queries", file, "-k", 5)[0]), wanted, strict=True):
        compare(line, (rows[:5], scores[:5]))
    file = npy(folder / "none.npy", (0, 8), "<f4", b"")
    assert run(path, "--queries", file)[0] == ""
    # Scores that float32 does not have.
    path = save_table(folder / "large.safetensors", [[3e38, 3e38], [1.0, 0.0]])
    got = answers(run(path, given=b"[3e38, 3e38]\n")[0])[0]["scores"] # of both rows, which are less than 10
    run(path, "-k", 3, given=b"0", code=1, find="-k 3: .* has 2 rows")
    assert got[0] is None and math.isclose(got[1], 3e38, rel_tol=1e-6), got
    assert answers(run(path, "-k", 2, "--metric", "cosine", given=b"[3e38, 3e38]\n")[0])[0]["rows"] == [0, 1]


def check_names(folder):
    table = make_table(5, 4, 4)
    path, names = save_table(folder / "table.safetensors", table), folder / "names.txt"
    called = ["cat", "größe \"名前\"\\", "dog", "twice", "twice"]
    names.write_text("\n".join(called) + "\n", encoding="utf-8")
    given = "".join(json.dumps(name) + "\n" for name in ("cat", called[1], "twice", "bird")) + "3\n"
    for ranks in (1, 2):
        got = answers(run(path, "--names", names, "-k", 2, "-b", 3, ranks=ranks, given=given.encode())[0])
        for line, row in ((got[0], 0), (got[1], 1), (got[4], 3)):
            compare(line, search(table, table[row], 2))
            assert line["names"] == [called[found] for found in line["rows"]] and list(line) == ["query", "rows", "names", "scores"]
        assert got[0]["query"] == "cat" and got[1]["query"] == called[1] and got[4]["query"] == 3, got
        assert got[2] == {"line": 3, "error": 'the name "twice" is that of rows 3 and 4; give the row'}, got
        assert got[3] == {"line": 4, "error": 'no row has the name "bird"'}, got
    names.write_bytes(b"a\r\nb\r\nc\r\nd\r\ne")  # of other systems, without an end
    assert answers(run(path, "--names", names, "-k", 1, given=b'"e"')[0])[0]["query"] == "e"
    for content, find in ((b"a\nb\n", "has 2 names, and the tensor has 5 rows"), (b"a\n\xff\nc\nd\ne\n", "line 2 is not a name in UTF-8"),
                          (b"a\nb\n\0\nd\ne\n", "line 3 is not")):
        names.write_bytes(content)
        run(path, "--names", names, "-k", 1, given=b"1", code=1, ranks=2, find=find)


def check_interactive(folder):
    """A line in, a line out; ranks that wait for the user do not run into their deadline."""
    table = make_table(9, 3, 5)
    path = save_table(folder / "table.safetensors", table)
    environment = {**os.environ, "SHARD_TIMEOUT": "4", "SHARD_LOG": "warn"}
    with subprocess.Popen([shardrun, "-n", "2", tool, str(path), "-k", "2", "--queries", "-"], stdin=subprocess.PIPE, env=environment,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        for number, line in enumerate(("4", "no", "[1, 0, -1]")):
            if number == 2:
                time.sleep(4.5)
            process.stdin.write(line + "\n")
            process.stdin.flush()
            got = json.loads(process.stdout.readline())
            if line == "no":
                assert got["line"] == 2 and "a name needs quotes" in got["error"], got
            else:
                compare(got, search(table, table[4] if line == "4" else json.loads(line), 2))
        rest, errors = process.communicate(timeout=SECONDS)
        assert process.returncode == 0 and not rest and not errors, (process.returncode, rest, errors)


def check_slow_vectors(folder):
    """A .npy file that comes in parts, of the header and of a row: what has come is answered, and ranks wait as long as it takes."""
    table, vectors = make_table(9, 3, 8), make_table(3, 3, 9)
    path = save_table(folder / "table.safetensors", table)
    data = npy(folder / "vectors.npy", (3, 3), "<f4", pack([value for row in vectors for value in row], "F32")).read_bytes()
    first = len(data) - 2 * 12 + 5  # a row and 5 bytes of the next one
    environment = {**os.environ, "SHARD_TIMEOUT": "4"}
    with subprocess.Popen([shardrun, "-n", "2", tool, str(path), "-k", "2"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, env=environment) as process:
        lines = []
        for begin, end, answered in ((0, 5, 0), (5, 20, 0), (20, first, 1), (first, len(data), 2)):
            process.stdin.write(data[begin:end])
            process.stdin.flush()
            time.sleep(4.5 if begin == 20 else 0.1)
            lines += [process.stdout.readline() for _ in range(answered)]
        rest, errors = process.communicate(timeout=SECONDS)
        assert process.returncode == 0 and not rest and not errors, (process.returncode, rest, errors)
        for number, line in enumerate(lines):
            assert json.loads(line)["query"] == {"vector": number}
            compare(json.loads(line), search(table, vectors[number], 2))
        assert len(lines) == 3


def check_slow_reader(folder):
    """A reader of the answers that stops, and one that takes a few at a time: ranks wait as long as it takes."""
    path, file = save_table(folder / "table.safetensors", make_table(60, 3, 11)), folder / "many.jsonl"
    file.write_text("".join(f"{i % 60}\n" for i in range(450)))
    arguments = [str(path), "-k", "50", "-b", "64", "--queries", str(file)]
    wanted = run(*arguments)[0].encode()
    assert len(wanted) > 3 << 16  # more than a pipe takes
    with subprocess.Popen([shardrun, "-n", "2", tool, *arguments], env={**os.environ, "SHARD_TIMEOUT": "4"}, bufsize=0,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        time.sleep(4.5)
        got = b""
        for _ in range(12):
            got += process.stdout.read(1 << 12)
            time.sleep(0.3)
        rest, errors = process.communicate(timeout=SECONDS)
        assert process.returncode == 0 and not errors, (process.returncode, errors)
        assert got + rest == wanted
    with open("/dev/full", "wb") as full:
        done = subprocess.run([tool, *arguments], stdout=full, stderr=subprocess.PIPE, timeout=SECONDS, check=False)
    assert done.returncode == 1 and b"cannot write to standard output: No space left" in done.stderr, done


def check_interrupted(folder):
    """A signal leaves the old output, and no temporary file."""
    path, output = save_table(folder / "table.safetensors", make_table(9, 3, 10)), folder / "answers.jsonl"
    output.write_text("old")
    for launcher, number, code in (([], signal.SIGINT, -signal.SIGINT), ([], signal.SIGTERM, -signal.SIGTERM),
                                   ([shardrun, "-n", "2"], signal.SIGINT, 128 + signal.SIGINT)):
        with subprocess.Popen([*launcher, tool, str(path), "-k", "2", "-o", str(output)], stdin=subprocess.PIPE,
                              stderr=subprocess.PIPE) as process:
            process.stdin.write(b"1\n")
            process.stdin.flush()
            until = time.monotonic() + SECONDS
            while not list(folder.glob("answers.jsonl.tmp.*")):
                assert process.poll() is None and time.monotonic() < until, process.stderr.read()
                time.sleep(0.02)
            process.send_signal(number)
            process.wait(timeout=SECONDS)
            errors = process.stderr.read().decode()
            assert process.returncode == code and f"interrupted by signal {int(number)}" in errors, (process.returncode, errors)
        assert output.read_text() == "old" and not list(folder.glob("*.tmp.*")), list(folder.iterdir())


# ---- wrong input ----


def check_wrong(folder):
    table = make_table(5, 4, 6)
    path, file = save_table(folder / "table.safetensors", table), folder / "queries"
    cases = 0
    for text, find in (("1\n\n5\n", "line 3: there is no row 5; rows are 0 to 4"), ("-1", "line 1: there is no row -1"),
                       ("[1, 2, 3]", "line 1: a vector of 3 numbers; the table's rows have 4"), ("[1, 2, 3, NaN]", "line 1: not JSON"),
                       ("[1, 2, 3, 1e39]", "line 1: number 3 of the vector is 1e\\+39"), ("[1, 2, 3, 1e999]", "line 1: not JSON"),
                       ("[1, 2, \"3\", 4]", "element 2 of the vector is not a number"), ("{\"row\": 1}", "neither a row's index"),
                       ("1.5", "neither a row's index"), ("true", "neither a row's index"), ("\"cat\"", "no --names FILE is given"),
                       ("1 2", "line 1: not JSON"), ("cat", "a name needs quotes"), ("99999999999999999999", "line 1: not JSON"),
                       ("\0", "line 1: not JSON"), ("[" * 100_000, "line 1: not JSON"), ("[" + "1" * 2_000_000, "line 1 has more than")):
        file.write_text(text)
        output = folder / "kept"
        output.write_text("old")
        run(path, "--queries", file, "-k", 2, "-o", output, code=1, find=find, ranks=1 + cases % 2)
        assert output.read_text() == "old"
        if len(text) < 1_000_000:
            got = answers(run(path, "-k", 2, given=text.encode())[0])
            assert re.search(find.removeprefix("line 1: ").removeprefix("line 3: "), got[-1]["error"]), got
        cases += 1
    for given in (b'"\xff\xfe"', b"\xff", "größe".encode() * 100, b'"' + "名".encode() * 500 + b'"'):
        got = answers(run(path, "-k", 1, given=given + b"\n1\n")[0])
        assert got[0]["line"] == 1 and got[0]["error"] and got[1]["query"] == 1, got
        cases += 1
    floats = struct.pack("<8f", *range(8))
    for shape, descr, data, more, find in (
            ((2, 4), "<f4", floats[:-1], {}, "ends in row 1 of 2"), ((2, 4), "<f4", floats + b"x", {}, "bytes after its 2 rows"),
            ((2, 4), "<f4", floats[:12] + struct.pack("<f", math.nan) + floats[16:], {}, "row 0: number 3 of the vector is -?nan"),
            ((2, 4), "<f8", struct.pack("<8d", *range(7), 1e300), {}, "row 1: number 3 of the vector is 1e\\+300"),
            ((4, 2), "<f4", floats, {}, "vectors of 2 numbers; the table's rows have 4"), ((8,), "<f4", floats, {}, "of 1 dimensions"),
            ((2, 2), "<i4", floats[:16], {}, "of 2 dimensions"), ((1,), "<i8", struct.pack("<q", 5), {}, "row 0: there is no row 5"),
            ((2, 4), ">f4", floats, {}, "dtype '>f4'"), ((2, 4), "<f4", floats, {"order": "True"}, "Fortran's order"),
            ((2, 4), "<f4", floats, {"version": 9}, "not a .npy file"), ("(2, 4", "<f4", floats, {}, "malformed .npy header"),
            ((), "<f4", floats[:4], {}, "of 0 dimensions")):
        run(path, "--queries", npy(file, shape, descr, data, **more), "-k", 2, code=1, find=find)
        cases += 1
    for data, find in ((b"\x93NUM", "a .npy file of 4 bytes"), (b"\x93NUMPY\1\0\xff\xff    ", "ends in the .npy header"),
                       (b"\x93NUMPX\1\0\x10\0    ", "not a .npy file"), (b"\x93NUMPY\2\0\xff\xff\xff\xff", "header of 4294967295 bytes")):
        file.write_bytes(data)
        run(path, "--queries", file, "-k", 2, code=1, find=find)
        cases += 1
    # The size of the file bounds the number of its rows.
    empty = save(folder / "empty.safetensors", {"a": ("F32", [2, 0], b"")})
    assert answers(run(empty, "-k", 1, given=b"[]")[0])[0]["scores"] == [0]
    run(empty, "--queries", npy(file, (10**18, 0), "<f4", b""), "-k", 1, code=1, find="vectors of 0 numbers; give them as lines")
    endless = save(folder / "endless.safetensors", {"a": ("F32", [2**56, 0], b"")})
    for ranks, metric in ((1, "ip"), (2, "cosine")):
        got = answers(run(endless, "-k", 2, "--metric", metric, ranks=ranks, given=b"[]\n72057594037927935\n")[0])
        assert [(line["rows"], line["scores"]) for line in got] == [([0, 1], [0, 0])] * 2, got
    cases += 1 + check_wrong_arguments(folder, path)
    print(f"cases: {cases}")


def check_wrong_arguments(folder, path):
    several = save(folder / "several.safetensors", {
        "a": ("F32", [2, 3], bytes(24)), "b": ("F16", [1, 2], bytes(4)), "c": ("F32", [4], bytes(16)), "d": ("I64", [1, 1], bytes(8)),
        "e": ("F8_E4M3", [2, 2], bytes(4))})
    many = save(folder / "many.safetensors", {f"layer{i}": ("F32", [1, 1], bytes(4)) for i in range(9)})
    none = save(folder / "none.safetensors", {"c": ("F32", [4], bytes(16))})
    odd = save_table(folder / "odd.safetensors", [[1, 2], [3, math.nan], [math.inf, 4]])
    damaged = folder / "damaged.safetensors"
    damaged.write_bytes(path.read_bytes()[:-3])
    out = folder / "out"
    (folder / "link").symlink_to(".")  # two more paths of `out`
    (folder / "name").symlink_to("link/out")
    cases = (
        ([several], r'has 5 tensors; its floating tensors of two dimensions are "a" \[2, 3\], "b" \[1, 2\]: choose one by --tensor'),
        ([several, "--tensor", "x"], r'has no tensor "x"; its floating tensors of two dimensions are "a"'),
        ([several, "--tensor", "c"], r'has "c" as float32 of shape \[4\]'), ([several, "--tensor", "d"], '"d" as int64'),
        ([several, "--tensor", "e"], 'a tensor "e" that has dtype F8_E4M3'), ([many], r'"layer5" \[1, 1\] and 3 more'),
        ([none], "no floating tensor of two dimensions"), ([path, "-k", "6"], r'-k 6: "fc.weight" has 5 rows'),
        ([path, "-k", "-1"], "is not a whole number of at least 0"), ([odd, "-k", "1"], "row 1 has a number that is not finite in column 1"),
        ([damaged], "damaged.safetensors"), ([folder / "missing"], "missing"), ([], "give a CHECKPOINT"), ([path, path], "one CHECKPOINT only"),
        ([path, "--metric", "l2"], 'there is no "l2"'), ([path, "-k", "1", "--queries", folder / "missing"], "cannot open"),
        ([path, "-k", "1", "--queries", folder], "is a folder"), ([path, "-k", "1", "--names", folder / "missing"], "cannot open"),
        ([path, "-k", "1", "--names", "-"], "is an option"), ([path, "-k", "1", "-o", folder / "no" / "x"], "cannot create"),
        ([path, "-b", "0"], "from 1 to 65536"), (["export", path], "give --npy FILE, --faiss FILE, or both"),
        (["export", path, "--npy", path], "it is the input"), (["export", path, "--npy", out, "--faiss", out], "are the same file"),
        (["export", path, "--npy", out, "--faiss", folder / "." / "link" / "out"], "are the same file"),
        (["export", path, "--npy", folder / "name", "--faiss", out], "are the same file"),
        ([path, "-o", path], "it is the input"),
        (["export", several, "--npy", out], "choose one by --tensor"), (["export", path, "-k", "3"], "no option"),
        (["export", odd, "--faiss", out], "row 1 has a number that is not finite in column 1"))
    for number, (arguments, find) in enumerate(cases):
        exports = arguments[:1] == ["export"]
        run(*arguments, code=1, find=find, ranks=1 if exports else 1 + number % 2, given=b"")
        assert not out.exists()
    run("export", path, "--npy", out, code=1, ranks=2, find="export is for one rank, and there are 2")
    # As jobs that were killed leave them.
    left, queries = folder / "out.tmp.0123456789abcdef", folder / "out.tmp.fedcba9876543210"
    left.write_bytes(path.read_bytes())
    queries.write_text("0")
    for arguments in ([left, "-o", out], [path, "--queries", queries, "-o", out], ["export", left, "--npy", folder / "name"]):
        run(*arguments, code=1, find="has the name of a temporary file", given=b"")
        assert left.exists() and queries.exists() and not out.exists(), arguments
    left.unlink()
    queries.unlink()
    return len(cases) + 4


# ---- exports ----


def read_npy(path):
    data = path.read_bytes()
    assert data[:8] == b"\x93NUMPY\1\0" and len(data) >= 128
    length, = struct.unpack_from("<H", data, 8)
    assert (10 + length) % 64 == 0 and data[9 + length:10 + length] == b"\n"
    header = eval(data[10:10 + length])  # pylint: disable=eval-used
    rows, width = header.pop("shape")
    descr = header.pop("descr")
    assert header == {"fortran_order": False}, header
    numbers = struct.unpack(f"<{rows * width}{descr[1:].translate({ord('f'): None}).translate({ord('4'): 'f', ord('8'): 'd'})}",
                            data[10 + length:])
    return descr, [list(numbers[i * width:(i + 1) * width]) for i in range(rows)]


def read_faiss(path):
    """As index_read.cpp reads IxFI."""
    data = path.read_bytes()
    kind, width, rows, first, second, trained, metric, count = struct.unpack_from("<4siqqqBiQ", data)
    assert (kind, first, second, trained, metric, count) == (b"IxFI", 1 << 20, 1 << 20, 1, 0, rows * width)
    assert len(data) == 45 + 4 * count
    numbers = struct.unpack_from(f"<{count}f", data, 45)
    return [list(numbers[i * width:(i + 1) * width]) for i in range(rows)]


def close(a, b):
    return len(a) == len(b) and all(math.isclose(x, y, rel_tol=1e-6, abs_tol=1e-7) for row, other in zip(a, b)
                                    for x, y in zip(row, other, strict=True))


def check_export(folder):
    table = make_table(17, 5, 7)
    table[2] = [0.0] * 5
    array, index = folder / "table.npy", folder / "table.faiss"
    for dtype, descr in (("F32", "<f4"), ("BF16", "<f4"), ("F16", "<f4"), ("F64", "<f8")):
        path = save_table(folder / "table.safetensors", table, dtype)
        run("export", path, "--npy", array, "--faiss", index, "--tensor", "fc.weight")
        assert read_npy(array) == (descr, table) and read_faiss(index) == table
        run("export", path, "--npy", array, "--cosine")
        run("export", path, "--faiss", index, "--cosine")
        wanted = [normalized(row) for row in table]
        assert close(read_npy(array)[1], wanted) and close(read_faiss(index), wanted)
        read_by_faiss(index, wanted)
    array.chmod(0o600)
    run("export", path, "--npy", array)  # in its place
    assert array.stat().st_mode & 0o777 == 0o600
    many = save_table(folder / "many.safetensors", [[float(i)] for i in range(1_500_000)])  # two blocks
    run("export", many, "--npy", array, "--faiss", index)
    for file, start in ((array, 128), (index, 45)):
        data = file.read_bytes()
        assert len(data) == start + 4 * 1_500_000 and struct.unpack_from("<f", data, start + 4 * 1_499_999) == (1_499_999.0,)
        assert struct.unpack_from("<2f", data, start + 4 * (1 << 20) - 4) == (float((1 << 20) - 1), float(1 << 20))
    large = save_table(folder / "large.safetensors", [[1.0], [1e300]], "F64")
    run("export", large, "--npy", array)
    assert read_npy(array) == ("<f8", [[1.0], [1e300]])
    run("export", large, "--faiss", folder / "none", code=1, find="row 1 .* has 1e\\+300, which float32 cannot have")
    assert not (folder / "none").exists()
    # What the search loads is what NumPy and faiss get, with checksums.
    saved = folder / "saved.safetensors"
    subprocess.run([checkpoint_tool, "convert", str(path), "-o", str(saved)], check=True, timeout=SECONDS)
    data = bytearray(saved.read_bytes())
    at = data.rindex(pack([table[16][4]], "F64"))
    data[at] ^= 1
    saved.write_bytes(data)
    for arguments in (["export", saved, "--npy", folder / "none"], [saved, "-k", 1]):
        run(*arguments, code=1, given=b"", find='the data of "fc.weight" was changed')
        run(*arguments, "--skip-checksums", given=b"0\n")
    (folder / "none").unlink()


def read_by_faiss(path, table):
    """By the package, where it is there."""
    try:
        import faiss, numpy  # noqa: E401
    except ImportError as missing:
        print(f"left out: {path} by faiss, {missing}")
        return
    index = faiss.read_index(str(path))
    assert (index.ntotal, index.d, index.metric_type) == (len(table), len(table[0]), faiss.METRIC_INNER_PRODUCT)
    _, rows = index.search(numpy.array(table[3:4], dtype="float32"), 3)
    assert rows[0].tolist() == search(table, table[3], 3)[0], rows


def main():
    global tool, shardrun, checkpoint_tool
    tool, shardrun, checkpoint_tool = sys.argv[1:]
    for check in (check_rows, check_vectors, check_names, check_interactive, check_slow_vectors, check_slow_reader, check_interrupted, check_wrong, check_export):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            check(folder)
            assert not list(folder.rglob("*.tmp.*")), "a temporary file is left"
    run("--help", find="^Usage: shard-search CHECKPOINT")
    run("export", "--help", find="IndexFlatIP")
    print("shard-search does as it says")


if __name__ == "__main__":
    main()
