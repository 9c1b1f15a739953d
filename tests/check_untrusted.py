"""Whether this library and the safetensors package take and refuse the same files, apart from the list DIFFERENCES.

Usage: check_untrusted.py SHARD_CHECKPOINT [FILES]. The files are those of untrusted/headers.txt, and FILES random ones (2000), each
a sound header with some bytes or tokens changed. Exits with 77 (skipped) where the package is missing. docs/checkpoints.md has the
list for readers.
"""
import collections
import pathlib
import random
import re
import struct
import subprocess
import sys
import tempfile

from check_safetensors import crc64

# What the package does with a file, a pattern of the line that libshard prints of it, and the reason. A file on which the two differ
# belongs to one of these; each of them has a file in untrusted/headers.txt.
DIFFERENCES = {
    "The format's text asks for { as the first byte; the package takes spaces before it.": (True, "does not begin with {"),
    "Names and metadata are C strings here, without the character U+0000.": (True, "a NUL character in a string"),
    "A tensor or a string of the metadata that stands twice is ambiguous; the package takes the last one.": (True, "duplicate"),
    "The format's text asks for an object as __metadata__; the package takes null for none.": (True, "__metadata__ is not an object"),
    "A number of an unknown key is skipped here, even beyond float64.": (False, "number out of range"),
    "The package does not know the checksums.": (True, "its header was changed|its metadata crc64|the data of .* was changed"),
}
TABLE = pathlib.Path(__file__).parent / "untrusted" / "headers.txt"


def tensor(match):
    dtype, shape, begin, end = match.group(1).split()
    return f'{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]}}'


def repeated(match):
    numbered, times, text = match.groups()
    return "".join(text.replace("#", str(i)) if numbered else text for i in range(int(times)))


def content(text):
    """The bytes that a text of the table describes, as support/cases.h says."""
    text = re.sub(r"%T\(([^)]*)\)", tensor, text)
    text = re.sub(r"%(#?)\((\d+) ([^)]*)\)", repeated, text)
    return re.sub(rb"%([0-9A-F]{2}|%)", lambda match: b"%" if match[1] == b"%" else bytes([int(match[1], 16)]), text.encode())


def whole(header, data_bytes):
    return struct.pack("<Q", len(header)) + header + bytes((i + 1) % 256 for i in range(data_bytes))


def make(text):
    if text.startswith("raw "):
        return content(text[4:])
    number, header = text.split(" ", 1)
    header = content(header.replace("%H", "0" * 16))
    sums = b'"crc64.header":"' + b"0" * 16
    right = crc64(struct.pack("<Q", len(header)) + header).encode() if sums in header and "%H" in text else b""
    return whole(header.replace(sums, sums[:16] + right, 1) if right else header, int(number))


def cases():
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    for at, line in enumerate(lines):
        if line.startswith("name: "):
            yield line[6:], make(lines[at + 1][6:])


TOKENS = [b"{", b"}", b"[", b"]", b",", b":", b'"', b" ", b"\n", b"\t", b"0", b"1", b"-1", b"-0", b"1.0", b"1e3", b"null", b"true", b"\\u0000",
          b"\\ud800", b"\\u0061", b"\\/", b"\\x", b"\xff", b"\xc3\xa4", b"\x00", b"\x01", b"\x7f", b'"a"', b'"dtype"', b'"shape"', b'"__metadata__"',
          b"U8", b"F4", b"F6_E2M3", b"BOOL", b"9223372036854775807", b"18446744073709551615", b"18446744073709551616", b"[1]", b"[0]", b"{}", b"[]", b'""']
SOUND = ['{"a":%T(U8 [1] 0 1)}', '{"__metadata__":{"k":"v"},"a":%T(U8 [2] 0 2),"b":%T(F16 [1,1] 2 4)}', "{}", '{"a":%T(F4 [2,2] 0 2)}',
         '{"a":%T(U8 [0] 0 0),"b":%T(I64 [] 0 8),"c":%T(BOOL [2] 8 10)}', '{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":[{"y":-1.5e3}]}}']
SIZES = [1, 4, 0, 2, 10, 1]


def generated(count):
    chance = random.Random(20261)
    for number in range(count):
        which = chance.randrange(len(SOUND))
        header = bytearray(content(SOUND[which]))
        for _ in range(chance.choice((1, 1, 2, 3))):
            at = chance.randrange(len(header) + 1)
            if chance.random() < 0.4 and header:
                header[min(at, len(header) - 1)] = chance.choice(b'0123456789{}[],:"aU \\')
            else:
                header[at:at + chance.choice((0, 0, 1, 1, 2, 3))] = chance.choice(TOKENS)
        yield f"generated {number}", whole(bytes(header), max(0, SIZES[which] + chance.choice((0, 0, 0, 0, 0, -1, 1))))


def by_package(data):
    """None if the package reads the file, or its error."""
    import safetensors
    try:
        safetensors.deserialize(data)
    except Exception as error:  # of Rust's types
        return str(error)
    return None


def by_libshard(program, paths):
    """None for each file that is read, or its error; a difference of checksums is none, as the package has no checksums."""
    done = subprocess.run([program, "verify", *map(str, paths)], capture_output=True, check=False, timeout=300)
    results, errors = [], iter(done.stderr.decode().splitlines())
    for path, line in zip(paths, done.stdout.decode().splitlines(), strict=True):
        assert line.startswith(f"{path}: "), line
        sound = line.endswith((": as it was saved", ": has no checksums"))
        results.append(None if sound else next(errors).removeprefix("shard-checkpoint: ").replace(str(path), "FILE"))
    return results


def main():
    program, count = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 2000
    try:
        import safetensors  # noqa: F401
    except ImportError as missing:
        print(f"skipped: {missing}")
        sys.exit(77)
    names, datas = zip(*cases(), *generated(count))
    unexplained, seen = [], collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        paths = [pathlib.Path(folder) / str(i) for i in range(len(datas))]
        for path, data in zip(paths, datas):
            path.write_bytes(data)
        ours = [error for at in range(0, len(paths), 500) for error in by_libshard(program, paths[at:at + 500])]
    for name, data, error in zip(names, datas, ours):
        theirs = by_package(data)
        if (error is None) == (theirs is None):
            continue
        reason = next((reason for reason, (takes, pattern) in DIFFERENCES.items()
                       if takes == (theirs is None) and re.search(pattern, error or theirs)), None)
        if not reason:
            unexplained.append(f"{name}: libshard: {error or 'reads it'}; the package: {theirs or 'reads it'}; {data[:200]!r}")
        elif not name.startswith("generated"):
            seen[reason] += 1
    print(f"cases: {len(names)}")
    for reason in DIFFERENCES:
        print(f"{seen[reason]:4} of the table: {reason}")
    assert not unexplained, "\n".join([f"{len(unexplained)} differences that are not in the list:", *unexplained[:40]])
    unused = [reason for reason in DIFFERENCES if not seen[reason]]
    assert not unused, f"no file of the table has these differences: {unused}"


if __name__ == "__main__":
    main()
