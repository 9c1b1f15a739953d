"""Whether shard-checkpoint shows, compares and rewrites safetensors files as its --help says.

Usage: check_checkpoint_tool.py SHARD_CHECKPOINT SHARDRUN CHECKPOINT_PROGRAM. Files of other programs are written below,
byte by byte. Where the safetensors package, numpy and ml_dtypes are installed, they read what the program writes, too.
"""
import array
import fcntl
import hashlib
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
import termios
import time

from check_safetensors import check_checksums, crc64, read_by_package, read_strict, unique, without_checksums

SECONDS = 60 * int(os.environ.get("CK_TIMEOUT_MULTIPLIER", "1"))
SIZES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "U8": 1, "BOOL": 1, "F8_E4M3": 1}
BLOCK = 8 << 20  # bytes that the program reads at once
tool = ""
commands = 0  # those that were tried


def call(command, **options):
    global commands
    commands += 1
    return subprocess.run(command, stderr=subprocess.PIPE, timeout=SECONDS, check=False, **options)


def run(code, *arguments, find=(), limit=None):
    """The output; the exit code is `code`, and each pattern of `find` is in a line of the output."""
    command = [tool, *map(str, arguments)]
    if limit:
        command = ["sh", "-c", f'{limit}; exec "$@"', "sh", *command]
    done = call(command, stdout=subprocess.PIPE)
    text = (done.stdout + done.stderr).decode("utf-8")
    assert done.returncode == code, f"{arguments}: exit code {done.returncode}, not {code}:\n{text}"
    for pattern in [find] if isinstance(find, str) else find:
        assert re.search(pattern, text, re.M), f"{arguments}: no \"{pattern}\" in:\n{text}"
    return text


def pack_header(header):
    text = json.dumps(header, ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def write(path, tensors, metadata=None):
    """A file as another program writes it: (dtype, shape, bytes) by name."""
    header, at = {"__metadata__": metadata} if metadata else {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    path.write_bytes(pack_header(header) + b"".join(data for _, _, data in tensors.values()))
    return path


def read(path):
    """Metadata without checksums, and tensors, of a file that the program has written."""
    data = path.read_bytes()
    size, = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + size], object_pairs_hook=unique)
    metadata, data = header.pop("__metadata__"), data[8 + size:]
    assert "crc64.header" in metadata and "crc64.tensors" in metadata, metadata
    tensors = {name: (e["dtype"], e["shape"], data[slice(*e["data_offsets"])]) for name, e in header.items()}
    assert list(json.loads(metadata["crc64.tensors"])) == list(tensors)
    assert sum(len(data) for _, _, data in tensors.values()) == len(data)
    return without_checksums(metadata), tensors


def floats(values, form="f"):
    return struct.pack(f"<{len(values)}{form}", *values)


def noise(bytes_, seed):
    return random.Random(seed).randbytes(bytes_)


def normal(count, seed):
    """float32 values from 0.5 to 2, of both signs: bits of noise, but for most of the exponent's."""
    bits = int.from_bytes(noise(4 * count, seed), "little")
    mask, exponent = (int.from_bytes(struct.pack("<I", word) * count, "little") for word in (0x80FFFFFF, 0x3F000000))
    return (bits & mask | exponent).to_bytes(4 * count, "little")


def others(folder):
    """A file of another program: dtypes that tensors of the library cannot have, a scalar, nothing, several blocks."""
    return write(folder / "others.safetensors", {
        "layer.weight": ("F32", [6, 4], normal(24, 1)),
        "layer.bias": ("BF16", [4], b"".join(floats([i / 2])[2:] for i in range(4))),
        "layer.mask": ("BOOL", [3], b"\1\0\1"),
        "scale": ("F8_E4M3", [2, 2], b"\x38\x40\x44\x48"),
        "steps": ("I64", [], struct.pack("<q", -7)),
        "empty": ("F32", [0, 3], b""),
        "big": ("F32", [5_000_000], noise(20_000_000, 2)),
        "tab\there\x1b[31m": ("U8", [2], b"\3\4"),
    }, {"format": "pt", "größe": "\x07\"名前\""})


# ---- commands ----


def check_inspect(folder, saved):
    text = run(0, "inspect", saved, find=(r"^float32 +\[13, 7\] +364  fc.weight$", r"^int64 +\[\] +8  bn\.num_batches_tracked$",
                                          r"^9 tensors, \d+ bytes, with checksums$", r'^metadata größe = "名前"\\n$'))
    assert "crc64" not in text, text
    text = run(0, "inspect", others(folder), find=(r"^BOOL +\[3\] +3  layer.mask$", r"^F8_E4M3 ", r"without checksums$"))
    assert "tab\\there\\x1b[31m" in text and "\x1b" not in text and "\x07" not in text, text

    # Nothing that a terminal obeys is printed, in any column or message.
    evil = "\x1b]0;title\x07\r\n\x9b2J\u202edaolyap\u2066\u200b\x7f"
    tamed = r"\x1b]0;title\x07\r\n\xc2\x9b2J\xe2\x80\xaedaolyap\xe2\x81\xa6\xe2\x80\x8b\x7f"
    strange = write(folder / "strange\x1b[31m.safetensors", {evil: ("U8", [1], b"1"), "b": ("BOOL", [1], b"1")}, {evil: evil})
    other = write(folder / "other.safetensors", {evil: ("F16", [2], b"1234"), evil + "2": ("U8", [0], b"")}, {evil: "x"})
    for command in (["inspect", strange], ["inspect", strange, "--values"], ["verify", strange], ["diff", strange, other],
                    ["merge", strange, other, "-o", folder / "m"], ["join", strange, other, "-o", folder / "m"], [evil, strange],
                    ["convert", strange, "-o", folder / "m", "--rename", evil + "=b"], ["inspect", strange, "--" + evil],
                    ["convert", strange, "-o", folder / "m", "--drop", "no" + evil], ["inspect", folder / evil]):
        done = call([tool, *map(str, command)], stdout=subprocess.PIPE)
        text = (done.stdout + done.stderr).decode("utf-8")
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f]", text), (command, text)
        assert tamed in text or r"strange\x1b[31m" in text, (command, text)
    (folder / "m").unlink(missing_ok=True)

    values = [0.5, -3.0, 2.0, math.nan, math.inf, -math.inf, math.nan, 1.5]
    finite = [value for value in values if math.isfinite(value)]
    large = [1000 + i % 7 + i // 500_000 for i in range(1_500_000)]
    path = write(folder / "values.safetensors", {
        "mixed": ("F64", [8], floats(values, "d")), "large": ("F32", [len(large)], floats(large)),
        "none": ("F32", [0], b""), "nan": ("F16", [1], b"\x00\x7e"), "huge": ("F64", [2], floats([-1.5e308, 1.5e308], "d")),
        "ints": ("I32", [3], floats([-1, 2, 5], "i"))})
    rows = {line.split()[-1]: re.split(r"  +", line)[3:] for line in run(0, "inspect", path, "--values").splitlines()}

    def expected(numbers):
        mean = math.fsum(numbers) / len(numbers)
        return [min(numbers), max(numbers), mean, math.sqrt(math.fsum((x - mean) ** 2 for x in numbers) / len(numbers))]

    for name, numbers, nan, inf in (("mixed", finite, 2, 2), ("large", large, 0, 0), ("ints", [-1, 2, 5], 0, 0)):
        row = rows[name]
        assert row[4:6] == [str(nan), str(inf)], (name, row)
        for got, wanted in zip(row[:4], expected(numbers)):
            assert math.isclose(float(got), wanted, rel_tol=1e-4), (name, row, expected(numbers))
    assert rows["huge"][:6] == ["-1.5e+308", "1.5e+308", "0", "1.5e+308", "0", "0"], rows
    assert rows["none"][:6] == ["-"] * 4 + ["0", "0"] and rows["nan"][:6] == ["-"] * 4 + ["1", "0"], rows


def check_verify(folder, saved):
    run(0, "verify", saved, find="as it was saved$")
    other = others(folder)
    run(0, "verify", other, saved, find=("others.safetensors: has no checksums$", "as it was saved$"))
    damaged = folder / "damaged.safetensors"
    data = bytearray(saved.read_bytes())
    header, = struct.unpack_from("<Q", data)
    begin, _ = json.loads(data[8:8 + header])["fc.columns"]["data_offsets"]
    data[8 + header + begin + 5] ^= 4
    damaged.write_bytes(data)
    run(1, "verify", damaged, saved, find=("damaged.safetensors: damaged$", 'the data of "fc.columns" was changed', "as it was saved$"))
    output = folder / "not.safetensors"
    for command in (["merge", damaged, other, "--drop-metadata"], ["convert", damaged], ["convert", damaged, "--dtype", "float64"]):
        run(1, *command, "-o", output, find='the data of "fc.columns" was changed')
        assert not output.exists()
    run(1, "inspect", damaged, "--values", find='the data of "fc.columns" was changed')
    run(1, "join", damaged, damaged, "-o", output, find='the data of "fc.columns" was changed')
    # Without the checksums the damaged tensor is read as it is, and has a checksum again.
    run(0, "convert", damaged, "-o", output, "--skip-checksums")
    run(0, "verify", output)
    run(1, "diff", saved, output, find=r"^values differ: fc.columns: 1 of 91, by up to")
    data[20] ^= 1
    damaged.write_bytes(data)
    run(1, "verify", damaged)
    run(1, "verify", write_text(folder / "cut.safetensors", saved.read_bytes()[:-1]), find="cut off")
    run(1, "inspect", write_text(folder / "pickle", b"PK\3\4 and more bytes"), find="torch.save")
    run(3, "verify", folder / "missing", find="cannot open")
    run(3, "verify", folder, find="not a regular file")
    deep = folder / "deep.safetensors"
    deep.write_bytes(pack_header({"deep": {"dtype": "I8", "shape": [1] * 9, "data_offsets": [0, 1]}}) + b"x")
    run(0, "inspect", deep, "--values", find=r"^I8 +\[\.\.\.\] .* deep$")
    run(3, "merge", deep, "-o", output, find='"deep" has more than 8 dimensions')
    run(3, "diff", deep, deep, find='"deep" has more than 8 dimensions')
    assert not list(folder.glob("*.tmp.*"))


def write_text(path, data):
    path.write_bytes(data)
    return path


def check_diff(folder):
    other = others(folder)
    run(0, "diff", other, other, find="^8 tensors are the same$")
    _, tensors = raw(other)
    changed = {**tensors, "more": ("U8", [1], b"\0")}
    del changed["empty"]
    weight = bytearray(tensors["layer.weight"][2])
    first, = struct.unpack_from("<f", weight)
    struct.pack_into("<f", weight, 0, first + 0.25)
    struct.pack_into("<f", weight, 8, math.nan)
    big = bytearray(tensors["big"][2])
    struct.pack_into("<2f", big, 0, 1, 0.0)
    left = {**tensors, "big": ("F32", [5_000_000], bytes(big))}
    struct.pack_into("<2f", big, 0, 1, -0.0)
    big[BLOCK + 3] ^= 0x80
    changed |= {"layer.weight": ("F32", [6, 4], bytes(weight)), "layer.bias": ("F16", [4], floats([0, 0.5, 1, 2], "e")),
                "steps": ("I64", [1], struct.pack("<q", -7)), "layer.mask": ("BOOL", [3], b"\0\0\1"),
                "big": ("F32", [5_000_000], bytes(big))}
    a = write(folder / "a.safetensors", left, {"format": "pt", "step": "1"})
    b = write(folder / "b.safetensors", changed, {"format": "np", "epoch": "2"})
    differences = (r"^only in \S*a.safetensors: empty float32 \[0, 3\]$", r"^only in \S*b.safetensors: more uint8 \[1\]$",
                   r"^values differ: layer.weight: 2 of 24, by up to 0.25, 1 of them NaN in one file$",
                   r"^dtype differs: layer.bias: bfloat16 and float16$", r"^values differ: layer.bias: 1 of 4, by up to 0.5$",
                   r"^shape differs: steps: \[\] and \[1\]$", r"^values differ: layer.mask: 1 of 3$",
                   r"^metadata differs: format: pt and np$", r"^metadata only in \S*a.safetensors: step = 1$",
                   r"^metadata only in \S*b.safetensors: epoch = 2$", r"^values differ: big: 2 of 5000000, by up to ")
    text = run(1, "diff", a, b, find=differences)
    assert len(text.splitlines()) == len(differences), text

    near = write(folder / "near.safetensors", {"x": ("F32", [3], floats([1, 2, math.nan])), "n": ("I64", [1], floats([2**62], "q"))})
    far = write(folder / "far.safetensors", {"x": ("F32", [3], floats([1.25, 2, math.nan])), "n": ("I64", [1], floats([2**62 + 1], "q"))})
    run(1, "diff", near, far, find=("^values differ: x: 1 of 3, by up to 0.25$", "^values differ: n: 1 of 1, by up to 1$"))
    run(0, "diff", near, far, "--tolerance", "1", find="within the tolerance$")
    text = run(1, "diff", near, far, "--tolerance", "0.5", find="^values differ: n")
    assert "x" not in text, text


def raw(path):
    data = path.read_bytes()
    size, = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + size])
    metadata, data = header.pop("__metadata__", {}), data[8 + size:]
    return metadata, {name: (e["dtype"], e["shape"], data[slice(*e["data_offsets"])]) for name, e in header.items()}


def check_split_and_merge(folder, saved):
    original = others(folder)
    whole, parts, again = folder / "whole.safetensors", folder / "parts", folder / "again.safetensors"
    run(0, "merge", original, "-o", whole)
    assert read(whole) == raw(original)
    run(0, "split", whole, "--max-bytes", "100", "-o", parts)
    index = json.loads((parts / "model.safetensors.index.json").read_text())
    _, tensors = raw(original)
    files = sorted(path.name for path in parts.glob("*.safetensors"))
    assert index["metadata"] == {"total_size": sum(len(data) for _, _, data in tensors.values())}, index
    assert set(index["weight_map"]) == set(tensors) and sorted(set(index["weight_map"].values())) == files, index
    assert files == [f"model-0000{i + 1}-of-0000{len(files)}.safetensors" for i in range(len(files))] and len(files) == 4, files
    for name in files:
        metadata, some = read(parts / name)
        assert metadata == raw(original)[0], metadata
        assert {tensor for tensor, file in index["weight_map"].items() if file == name} == set(some)
        assert len(some) == 1 or sum(len(data) for _, _, data in some.values()) <= 100, some
    run(0, "merge", parts / "model.safetensors.index.json", "-o", again)
    assert again.read_bytes() == whole.read_bytes()
    again.unlink()
    run(0, "merge", *(parts / name for name in files), "-o", again)
    assert again.read_bytes() == whole.read_bytes()
    check_indexes(folder, whole, parts, files)
    run(3, "split", whole, "--max-bytes", "1KB", "-o", parts, find="model.safetensors.index.json is there already")
    run(0, "verify", *(parts / name for name in files))
    (parts / "model.safetensors.index.json").unlink()
    before = [(parts / name).stat().st_ino for name in files]
    run(3, "split", whole, "--max-bytes", "100", "-o", parts, find="model-00001-of-00004.safetensors is there already")
    assert [(parts / name).stat().st_ino for name in files] == before
    linked = folder / "linked"
    linked.mkdir()
    (linked / files[1]).hardlink_to(whole)
    run(3, "split", whole, "--max-bytes", "100", "-o", linked, find="it is the input")
    assert [path.name for path in linked.iterdir()] == [files[1]]

    for most, first in ((104, {"layer.weight", "layer.bias"}), (103, {"layer.weight"}), (1, {"layer.weight"})):
        exact = folder / f"exact{most}"
        run(0, "split", whole, "--max-bytes", most, "-o", exact)
        assert set(read(min(exact.glob("*.safetensors")))[1]) == first, most

    run(0, "split", whole, "--max-bytes", "100", "-o", f"{folder}/new//")
    assert sorted(path.name for path in (folder / "new").glob("*.safetensors")) == files

    # A split that fails leaves nothing that was not there.
    large, there = write(folder / "large.safetensors", {"a": ("F32", [2], bytes(8)), "b": ("F32", [30_000], bytes(120_000))}), folder / "there"
    there.mkdir()
    for output, left in ((there, []), (folder / "gone", None)):
        run(3, "split", large, "--max-bytes", "1KB", "-o", output, limit="ulimit -f 20", find="model-00002-of-00002.safetensors.*ulimit -f")
        assert (sorted(output.iterdir()) if output.exists() else None) == left, output

    # transformers needs the format.
    run(0, "split", saved, "--max-bytes", "1GiB", "-o", folder / "one")
    one = folder / "one" / "model-00001-of-00001.safetensors"
    assert read(one) == ({**without_checksums(read_strict(saved)[0]), "format": "pt"}, read_strict(saved)[1])
    check_checksums(one)
    read_too(one)
    read_too(again, skip=("scale", "layer.mask"))
    check_merge_refuses(folder, parts, files)


def check_indexes(folder, whole, parts, files):
    """An index stands for its files."""
    index, other, converted = parts / "model.safetensors.index.json", folder / "other-parts", folder / "converted.safetensors"
    run(0, "split", whole, "--max-bytes", "1KB", "-o", other)
    rows = [sorted(run(0, "inspect", path).splitlines()) for path in (whole, index)]
    sums = [next(row for row in some if " tensors" in row) for some in rows]
    assert [row for row in rows[0] if row not in sums] == [row for row in rows[1] if row not in sums], rows
    assert sums[1] == sums[0].replace(" tensors", f" tensors in {len(files)} files"), sums
    text = run(0, "verify", index, find="index.json: an index that agrees with its files$")
    assert text.count(": as it was saved\n") == len(files), text
    for left, right in ((index, whole), (whole, index), (index, other / index.name)):
        run(0, "diff", left, right, find="^8 tensors are the same$")
    run(0, "convert", index, "-o", converted)
    assert read(converted) == read(whole)
    run(3, "convert", index, "-o", index, find="it is the input")
    for command in (["split", index, "--max-bytes", "1KB", "-o", folder / "x"], ["join", index, whole, "-o", folder / "x"]):
        run(3, *command, find="index.json is an index: merge its files into one")
    changed = bytearray((parts / files[0]).read_bytes())
    (parts / files[0]).write_bytes(changed[:-1] + bytes([changed[-1] ^ 1]))
    run(1, "verify", index, find=(f"{files[0]}: damaged$", f"{files[1]}: as it was saved$"))
    run(1, "diff", whole, index, find="was changed after it was saved")
    run(1, "diff", whole, index, "--skip-checksums", find="^values differ: ")
    (parts / files[0]).write_bytes(changed)
    (folder / "lacks.index.json").write_text(json.dumps({"weight_map": {"none": whole.name}}))
    run(1, "verify", folder / "lacks.index.json", find=("lacks.index.json: damaged$", '"none" is not in '))


def check_error_after_difference(folder):
    """A file that becomes shorter when differences were printed already, which fill the pipe."""
    a, b = (write(folder / f"{name}.safetensors", {**{f"{i:0100}": ("U8", [1], name.encode()) for i in range(2000)},
                                                   "last": ("U8", [3 << 20], bytes(3 << 20))}) for name in "ab")
    with subprocess.Popen([tool, "diff", str(a), str(b)], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        size, end = fcntl.fcntl(process.stdout, fcntl.F_GETPIPE_SZ), time.monotonic() + SECONDS
        while struct.unpack("i", fcntl.ioctl(process.stdout, termios.FIONREAD, bytes(4)))[0] < size - 8192 and time.monotonic() < end:
            time.sleep(0.01)
        os.truncate(b, b.stat().st_size - 10)
        out, error = process.communicate(timeout=SECONDS)
    assert process.returncode == 3 and b"values differ: " in out and b"b.safetensors" in error, (process.returncode, error)


def check_merge_refuses(folder, parts, files):
    output = folder / "refused.safetensors"
    run(3, "merge", parts / files[0], parts / files[0], "-o", output, find="two tensors would have the name")
    a = write(folder / "m1.safetensors", {"a": ("U8", [1], b"1")}, {"step": "1"})
    b = write(folder / "m2.safetensors", {"b": ("U8", [1], b"2")}, {"step": "2"})
    run(3, "merge", a, b, "-o", output, find='metadata has "step" = "2"')
    run(0, "merge", a, b, "-o", output, "--drop-metadata")
    assert read(output) == ({}, {"a": ("U8", [1], b"1"), "b": ("U8", [1], b"2")})
    output.unlink()
    index = folder / "x.index.json"

    def refuse(text, find, code=1):
        index.write_bytes(text.encode())
        run(code, "merge", index, "-o", output, find=find)
        assert not output.exists()

    def weights(more="", **files_of):
        return json.dumps({"metadata": {"total_size": 2, "more": [1]}, "weight_map": files_of})[:-1] + more + "}"

    good = weights(a="m1.safetensors", b="m2.safetensors")
    (folder / "sub").mkdir()
    write(folder / "sub" / "m1.safetensors", {"a": ("U8", [1], b"1")})
    for path in ("../" + folder.name + "/m1.safetensors", "sub/m1.safetensors", str(a), "..", ".", ""):
        refuse(weights(a=path, b="m2.safetensors"), "not the name of a file in the index's folder")
    refuse(good.replace('"b":', '"a":'), 'duplicate of "a"')
    refuse(weights(a="m1.safetensors"), "total_size is 2, and its files have 1 bytes")
    refuse(weights(a="m1.safetensors", c="m2.safetensors"), '"c" is not in .*m2.safetensors')
    two = write(folder / "two.safetensors", {"b": ("U8", [1], b"2"), "c": ("U8", [1], b"2")})
    refuse(weights(a="m1.safetensors", b=two.name), '"c" of .*two.safetensors is not in the index')
    refuse(weights(a="m1.safetensors", b="m3.safetensors"), "cannot open .*m3.safetensors", 3)
    refuse(weights(more=', "weight_map": {}', a="m1.safetensors"), "two weight_map")
    refuse('{"metadata": {}}', "no weight_map")
    refuse(good[:-3], "not a well-formed index: byte")
    refuse(good + "x", "more text behind it")
    refuse(good.replace('"m1.safetensors"', "1"), "another character is needed here")
    refuse("[" * 100_000, "not a well-formed index")
    refuse("", "not a well-formed index")
    index.write_text(good)
    run(0, "merge", index, "-o", output, "--drop-metadata")
    output.unlink()
    run(3, "merge", index, a, "-o", output, find="an index is merged alone")
    run(3, "merge", index, "-o", index, "--drop-metadata", find="it is the input")


def check_overflow(folder):
    """A cast that makes finite values infinite is refused; values that are infinite or NaN before it are not counted."""
    infinite, output = b"\x00\x00\x80\x7f\x00\x00\xc0\xff", folder / "narrow.safetensors"  # +inf, NaN
    far = lambda count: write(folder / "far.safetensors", {  # noqa: E731: 65520 is the least number that float16 rounds to infinity
        "near": ("F32", [2], struct.pack("<2f", 65504, -65519.9)),
        "w": ("F32", [1_500_002], infinite + struct.pack("<f", -65520.0) * count + struct.pack("<f", 1.0) * (1_500_000 - count))})
    for count in (1, 1_500_000):
        run(3, "convert", far(count), "-o", output, "--dtype", "float16",
            find=f'{count} finite values of "w" are infinite in float16; choose another --dtype, or write infinities with --allow-overflow')
        assert not output.exists()
    run(0, "convert", far(0), "-o", output, "--dtype", "float16")
    near, w = (read(output)[1][name][2] for name in ("near", "w"))
    assert near == b"\xff\x7b\xff\xfb" and w[:2] == b"\x00\x7c" and w[3] & 0x7c == 0x7c, (near, w[:4])
    run(0, "convert", far(1), "-o", output, "--dtype", "float16", "--allow-overflow")
    assert read(output)[1]["w"][2][4:6] == b"\x00\xfc"
    run(0, "convert", far(1), "-o", output, "--dtype", "bfloat16")
    for largest, to in ((1.79e308, "float32"), (3.4e38, "bfloat16")):
        wide = write(folder / "wide.safetensors", {"w": ("F64", [1], struct.pack("<d", largest))})
        run(3, "convert", wide, "-o", output, "--dtype", to, find=f'1 finite values of "w" are infinite in {to}')


def check_convert(folder, saved):
    original, output, back = others(folder), folder / "converted.safetensors", folder / "back.safetensors"
    metadata, tensors = raw(original)
    finite = write(folder / "finite.safetensors", {
        "w": ("F32", [2_200_000], normal(2_200_000, 4)), "h": ("BF16", [5], tensors["layer.bias"][2] + b"\x80\xbf"),
        "m": ("BOOL", [3], b"\1\0\1"), "i": ("I32", [1], b"\1\0\0\0")})
    run(0, "convert", finite, "-o", output, "--dtype", "float64")
    _, wide = read(output)
    assert wide["w"][:2] == ("F64", [2_200_000]) and wide["m"][0] == "BOOL" and wide["i"][0] == "I32", wide.keys()
    _, source = raw(finite)
    assert wide["w"][2] == floats(struct.unpack("<2200000f", source["w"][2]), "d")
    run(0, "convert", output, "-o", back, "--dtype", "float32")
    assert read(back)[1]["w"] == source["w"]
    run(0, "convert", back, "-o", output, "--dtype", "bfloat16")
    assert read(output)[1]["h"] == source["h"]
    some = struct.unpack("<9H", read(output)[1]["w"][2][:18])
    for got, value in zip(some, struct.unpack("<9I", source["w"][2][:36])):
        assert got == value + 0x7fff + (value >> 16 & 1) >> 16, (got, value)
    check_overflow(folder)
    run(3, "convert", original, "-o", back, "--dtype", "float32", find='"scale" has dtype F8_E4M3, which cannot be cast')

    run(0, "convert", original, "-o", output, "--drop", "big", "--drop", "tab", "--rename", "layer.bias=b", "--rename", "layer.=head.fc.",
        "--rename", "steps=count", "--rename", "layer.mask=mask", "--prefix-remove", "head.", "--prefix-add", "model.")
    names = {"layer.weight": "model.fc.weight", "layer.bias": "model.b", "layer.mask": "model.mask", "scale": "model.scale",
             "steps": "model.count", "empty": "model.empty"}
    assert read(output) == (metadata, {new: tensors[old] for old, new in names.items()}), read(output)
    run(0, "convert", original, "-o", output, "--keep", "layer.", "--keep", "empty", "--drop", "layer.m", "--drop", "layer.mask", "--drop", "big",
        "--drop-metadata")
    assert read(output) == ({}, {name: tensors[name] for name in ("layer.weight", "layer.bias", "empty")})
    output.unlink()
    for unused, *before in (["--keep x"], ["--drop x"], ["--rename layer=x"], ["--prefix-remove x"],
                            ["--rename layer.bias=b", "--drop", "layer."], ["--rename scale=t", "--rename", "scale=s"]):
        run(3, "convert", original, "-o", output, *before, *unused.split(), find=f"{unused}: it applies to no tensor")
    run(3, "convert", original, "-o", output, "--rename", "layer.bias=scale", find='two tensors would have the name "scale"')
    run(3, "convert", original, "-o", output, "--rename", "layer.bias=__metadata__", find="__metadata__")
    for option in (["--rename", "layer.bias="], ["--prefix-remove", "layer.bias"]):
        run(3, "convert", original, "-o", output, *option, find='"layer.bias" would have no name')
    assert not output.exists() and not list(folder.glob("*.tmp.*"))
    run(0, "convert", saved, "-o", output)
    assert output.read_bytes() == saved.read_bytes()  # all that shard_save writes, byte for byte
    check_outputs(folder, saved)


def check_outputs(folder, saved):
    """Never over an input, whole or not at all."""
    before = saved.read_bytes()
    for link in ("symbolic", "hard"):
        path = folder / f"{link}.safetensors"
        path.symlink_to(saved) if link == "symbolic" else path.hardlink_to(saved)
        run(3, "convert", saved, "-o", path, find="it is the input")
        run(3, "merge", saved, "-o", path, find="it is the input")
        path.unlink()
    run(3, "join", saved, saved, "-o", saved, find="it is the input")
    # The whole file of a job that was killed before it renamed it.
    left, new, link = folder / "new.tmp.0123456789abcdef", folder / "new", folder / "to_new"
    link.symlink_to("new")
    saved.rename(left)
    for output in (new, link):
        run(3, "convert", left, "-o", output, find="has the name of a temporary file")
    (folder / "elsewhere").mkdir()
    run(0, "convert", left, "-o", folder / "elsewhere" / "new")
    assert left.read_bytes() == before
    left.rename(saved)
    link.unlink()
    assert saved.read_bytes() == before and not new.exists()
    run(3, "convert", saved, "-o", folder / "no" / "x", find="cannot create")
    run(3, "convert", saved, "-o", folder, find="not a regular file")
    target, link = write_text(folder / "target", b"old"), folder / "link"
    target.chmod(0o600)
    link.symlink_to("target")
    run(0, "convert", saved, "-o", link)
    assert link.is_symlink() and target.read_bytes() == before and target.stat().st_mode & 0o777 == 0o600
    target.write_bytes(b"old")
    run(3, "convert", others(folder), "-o", target, limit="ulimit -f 20", find="ulimit -f")
    assert target.read_bytes() == b"old" and not list(folder.glob("*.tmp.*"))


def concatenated(shapes, datas, dim, size):
    """The bytes of the whole tensor."""
    rows = math.prod(shapes[0][:dim])
    widths = [size * math.prod(shape[dim:]) for shape in shapes]
    return b"".join(data[row * width:(row + 1) * width] for row in range(rows) for data, width in zip(datas, widths))


def check_join(folder):
    shapes = {"rows": ([3, 5], [2, 5], [0, 5]), "columns": ([7, 2], [7, 3], [7, 1]), "middle": ([2, 1, 3], [2, 4, 3], [2, 1, 3]),
              "wide": ([2, 1_500_000], [2, 1_000_000], [2, 1]), "many": ([1_000_000, 1], [1_000_000, 3], [1_000_000, 1]),
              "even": ([2, 2], [2, 2], [2, 2])}
    dims = {"columns": 1, "middle": 1, "wide": 1, "many": 1}
    ranks = [{name: ("F32", list(shape[rank]), noise(4 * math.prod(shape[rank]), f"{name}{rank}")) for name, shape in shapes.items()}
             for rank in range(3)]
    same = {"norm.weight": ("F32", [4], normal(4, 5)), "steps": ("I64", [], b"\7" + bytes(7)), "flags": ("BOOL", [2], b"\1\0"),
            "zeros": ("BF16", [2], bytes(4))}
    files = [write(folder / f"rank{rank}.safetensors", {**same, **tensors}, {"step": "9"}) for rank, tensors in enumerate(ranks)]
    output = folder / "joined.safetensors"
    along = [word for name, dim in dims.items() for word in ("--dim", f"{name}={dim}")]
    run(0, "join", *files, "-o", output, *along, find=(r"^rows \[5, 5\]: concatenated along dimension 0$", r"^even \[6, 2\]: ",
                                                        r"^columns \[7, 6\]: concatenated along dimension 1$", "^4 tensors are the same in all"))
    metadata, joined = read(output)
    assert metadata == {"step": "9"}
    assert {name: joined.pop(name) for name in same} == same
    for name, shape in shapes.items():
        dim = dims.get(name, 0)
        whole = list(shape[0])
        whole[dim] = sum(part[dim] for part in shape)
        expected = concatenated(shape, [rank[name][2] for rank in ranks], dim, 4)
        assert joined[name][:2] == ("F32", whole) and hashlib.sha256(joined[name][2]).digest() == hashlib.sha256(expected).digest(), name
    run(0, "verify", output)
    # What is the same by chance is concatenated if asked for; the beginning of names.
    run(0, "join", *files, "-o", output, *along, "--dim", "zeros=0", "--dim", "norm.=0", find="^2 tensors are the same")
    assert read(output)[1]["zeros"] == ("BF16", [6], bytes(12)) and read(output)[1]["norm.weight"][1] == [12]
    output.unlink()

    def refuse(tensors, find, *more, other=None):
        path = write(folder / "odd.safetensors", tensors, other or {"step": "9"})
        run(3, "join", files[0], path, "-o", output, *along, *more, find=find)
        assert not output.exists()

    full = {**same, **ranks[1]}
    refuse({**full, "rows": ("F32", [2, 4], bytes(32))}, r'"rows" has shape \[3, 5\] in .* and \[2, 4\]')
    refuse({**full, "rows": ("F16", [2, 5], bytes(20))}, '"rows" has dtype float32 in .* and float16')
    refuse({**full, "steps": ("I64", [], bytes(8))}, r'"steps" of shape \[\] is not the same in all files')
    refuse({**full, "more": ("U8", [1], b"1")}, 'has no tensor "more"')
    refuse({name: tensor for name, tensor in full.items() if name != "even"}, 'has no tensor "even"')
    refuse(full, "metadata", other={"step": "8"})
    refuse(full, "--dim none=1: it applies to no tensor", "--dim", "none=1")
    refuse(full, r'"zeros" of shape \[2\] is to be concatenated', "--dim", "zeros=1")
    check_join_of_parts_of_bytes(folder)
    check_join_of_many(folder)


def check_join_of_parts_of_bytes(folder):
    """Elements of less than a byte, in any of the files, are not concatenated."""
    output = folder / "joined4.safetensors"
    none, some = (write(folder / f"columns{columns}.safetensors", {"a": ("F4", [2, columns], bytes(columns))}) for columns in (0, 1))
    for files in ((none, some), (some, none), (none, none, some)):
        for dim in (0, 1):
            run(3, "join", *files, "-o", output, "--dim", f"a={dim}", find='"a" has dtype F4, which cannot be concatenated')
    run(0, "join", some, some, "-o", output, find="^1 tensor is the same")
    assert read(output)[1] == {"a": ("F4", [2, 1], b"\0")}


def check_join_of_many(folder):
    """More files than may be open at once: several blocks of whole rows, rows that are larger than a block, and dimension 0."""
    count, output = 100, folder / "many.safetensors"
    numbers = [array.array("I", noise(180_000, rank)) for rank in range(count)]
    files = [write(folder / f"many{rank}.safetensors", {
        "tall": ("F32", [45_000, 1], part.tobytes()), "wide": ("F32", [2, 22_500], part.tobytes()),
        "few": ("F32", [2, 1], part[:2].tobytes())}) for rank, part in enumerate(numbers)]
    run(0, "join", *files, "-o", output, "--dim", "tall=1", "--dim", "wide=1", limit="ulimit -n 32")
    joined = read(output)[1]
    tall = array.array("I", bytes(180_000 * count))
    for rank, part in enumerate(numbers):
        tall[rank::count] = part
    assert joined["tall"] == ("F32", [45_000, count], tall.tobytes())
    assert joined["wide"] == ("F32", [2, 22_500 * count], b"".join(part[at:at + 22_500].tobytes() for at in (0, 22_500) for part in numbers))
    assert joined["few"] == ("F32", [2 * count, 1], b"".join(part[:2].tobytes() for part in numbers))


def check_usage(folder, saved):
    run(0, "--help", find="^Usage: shard-checkpoint COMMAND")
    run(0, "split", "--help", find="^Usage: shard-checkpoint COMMAND")
    run(2)
    for arguments, find in (
            (["show", saved], "no command show"), (["inspect"], "takes 1 file, and 0 are given"), (["diff", saved], "takes 2 files"),
            (["inspect", saved, "--nothing"], "--nothing: not an option"), (["inspect", saved, "-o", "x"], "inspect has no option --output"),
            (["merge", saved], "where to"), (["split", saved, "-o", folder / "u"], "--max-bytes N"), (["join", saved, "-o", "x"], "at least 2"),
            (["split", saved, "-o", "x", "--max-bytes", "0"], "not a number of bytes"),
            (["split", saved, "-o", "x", "--max-bytes", "5TB"], "not a number of bytes"),
            (["split", saved, "-o", "x", "--max-bytes", "9999999999GB"], "not a number of bytes"),
            (["diff", saved, saved, "--tolerance", "-1"], "not a number from 0"), (["diff", saved, saved, "--tolerance", "nan"], "not a number"),
            (["convert", saved, "-o", "x", "--dtype", "int8"], "not bfloat16"), (["convert", saved, "-o", "x", "--rename", "a"], "with = between"),
            (["convert", saved, "-o", "x", "--prefix-add", "a", "--prefix-add", "b"], "more than once"),
            (["join", saved, saved, "-o", "x", "--dim", "a=b"], "a dimension from 0")):
        run(2, *arguments, find=find)
    for arguments in (["inspect", saved], ["--help"], ["inspect", "--help"]):
        full = call([tool, *arguments], stdout=open("/dev/full", "w"))
        assert full.returncode == 3 and b"No space" in full.stderr, full


def check_large(folder):
    """A tensor that is larger than the memory that is used; no part of an output is left by a signal. The first of the checks, as
    a process begins with the peak memory of the one that starts it."""
    global commands
    commands += 2
    big, output = folder / "large.safetensors", folder / "large-bfloat16.safetensors"
    count = 100_000_000
    header = pack_header({"x": {"dtype": "F32", "shape": [count], "data_offsets": [0, 4 * count]}})
    with big.open("wb") as file:  # a hole of zeros
        file.write(header)
        file.truncate(len(header) + 4 * count)
    command = [tool, "convert", str(big), "-o", str(output), "--dtype", "bfloat16"]
    _, status, usage = os.wait4(subprocess.Popen(command).pid, 0)
    assert status == 0 and output.stat().st_size == 4096 + 2 * count, status
    assert usage.ru_maxrss < 200_000, f"{usage.ru_maxrss} KiB"
    output.unlink()
    for _ in range(5):  # it may end before the signal
        output.unlink(missing_ok=True)
        with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
            while not list(folder.glob("*.tmp.*")) and process.poll() is None:
                pass
            process.send_signal(signal.SIGTERM)
            status, text = process.wait(SECONDS), process.stderr.read()
        if b"interrupted by signal 15" in text:
            break
    assert status == -signal.SIGTERM and b"interrupted by signal 15" in text, (status, text)
    assert os.listdir(folder) == [big.name], os.listdir(folder)
    # One that was killed leaves its file, which the next one removes.
    left = write_text(folder / f"{output.name}.tmp.0123456789abcdef", b"")
    os.utime(left, (0, 0))
    small = write(folder / "small.safetensors", {"x": ("F32", [1], bytes(4))})
    run(0, "convert", small, "-o", output)
    assert sorted(os.listdir(folder)) == sorted(path.name for path in (big, small, output)), os.listdir(folder)


def read_too(path, skip=()):
    """By the package, where it is there."""
    try:
        import ml_dtypes, numpy, safetensors  # noqa: F401, E401
    except ImportError as missing:
        print(f"left out: {path} by the package, {missing}")
        return
    if not skip:
        assert read_by_package(path)[1] == read(path)[1], path
        return
    from safetensors import safe_open
    with safe_open(path, framework="numpy") as file:
        assert set(file.keys()) == set(read(path)[1])


def main():
    global tool
    tool, shardrun, program = sys.argv[1:]
    assert crc64(b"123456789") == "ae8b14860a799888"
    for check in (check_large, check_inspect, check_verify, check_diff, check_error_after_difference,
                  check_split_and_merge, check_convert, check_join, check_usage):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            saved = folder / "saved.safetensors"
            if check.__code__.co_argcount == 2:
                subprocess.run([shardrun, "-n", "2", program, str(saved)], check=True, timeout=SECONDS,
                               env={**os.environ, "SHARD_DEVICE": "cpu"})  # the program's values are the host's
                check(folder, saved)
            else:
                check(folder)
            assert not list(folder.rglob("*.tmp.*")), "a temporary file is left"
    print(f"cases: {commands} commands\nshard-checkpoint does as it says")


if __name__ == "__main__":
    main()
