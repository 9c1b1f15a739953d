"""Whether others can read what libshard and the trainer save, value for value.

Usage: check_safetensors.py READER SHARDRUN CHECKPOINT_PROGRAM [IMAGENET]. READER is
"strict", which is below and follows the format's text, or "package": the safetensors
package. Exits with 77 (skipped) where the package, numpy or ml_dtypes (its bfloat16) is
missing.
"""
import json
import math
import pathlib
import struct
import subprocess
import sys
import tempfile

# Bytes of an element, and how the values i / 2 (floats) or i are packed.
DTYPES = {
    "F64": (8, lambda i: struct.pack("<d", i / 2)),
    "F32": (4, lambda i: struct.pack("<f", i / 2)),
    "F16": (2, lambda i: struct.pack("<e", i / 2)),
    "BF16": (2, lambda i: struct.pack("<f", i / 2)[2:]),
    "I64": (8, lambda i: struct.pack("<q", i)),
    "I32": (4, lambda i: struct.pack("<i", i)),
    "U8": (1, lambda i: struct.pack("<B", i)),
}
EXPECTED = {
    "fc.weight": ("F32", [13, 7]),
    "fc.columns": ("F32", [13, 7]),
    "fc.bias": ("F64", [13]),
    "größe/名前": ("F16", [2, 2]),
    "brain": ("BF16", [4]),
    "bn.num_batches_tracked": ("I64", []),
    "ints": ("I32", [3, 1, 2]),
    "bytes": ("U8", [5]),
    "nothing": ("F32", [0, 4]),
}
TRAINED = {
    "conv1.weight": ("F32", [64, 3, 3, 3]),
    "layer1.0.bn1.running_var": ("F32", [64]),
    "layer4.1.bn2.num_batches_tracked": ("I64", []),
    "fc.weight": ("F32", [101, 512]),
    "fc.bias": ("F32", [101]),
    "optimizer.fc.weight.momentum_buffer": ("F32", [101, 512]),
}


def unique(pairs):
    names = [name for name, _ in pairs]
    assert len(set(names)) == len(names), f"a key stands twice among {names}"
    return dict(pairs)


def read_strict(path):
    """Metadata, and dtype, shape and bytes of each tensor; anything odd is an assertion."""
    data = path.read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    assert size <= 100_000_000 and 8 + size <= len(data), size
    assert data[8:9] == b"{"
    header = json.loads(data[8:8 + size].decode("utf-8"), object_pairs_hook=unique)
    data = data[8 + size:]
    metadata = header.pop("__metadata__", {})
    assert all(isinstance(value, str) for value in metadata.values()), metadata
    tensors, at = {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        assert set(entry) == {"dtype", "shape", "data_offsets"}, entry
        begin, end = entry["data_offsets"]
        bytes_each = DTYPES[entry["dtype"]][0]
        assert begin == at and end - begin == math.prod(entry["shape"]) * bytes_each, (name, entry, at)
        assert (8 + size + begin) % bytes_each == 0, f"{name} is not aligned"
        tensors[name] = (entry["dtype"], entry["shape"], data[begin:end])
        at = end
    assert at == len(data), f"{len(data) - at} bytes after the last tensor"
    return metadata, tensors


def crc64(data):
    """CRC-64/NVME by its definition."""
    state = ~0 & (1 << 64) - 1
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = state >> 1 ^ (0x9A6C9329AC4BC9B5 if state & 1 else 0)
    return f"{state ^ (1 << 64) - 1:016x}"


def check_checksums(path):
    """As docs/checkpoints.md describes them; of tensors of some bytes only, as this is slow."""
    metadata, tensors = read_strict(path)
    sums = json.loads(metadata["crc64.tensors"], object_pairs_hook=unique)
    assert set(sums) == set(tensors), set(sums) ^ set(tensors)
    for name, (_, _, data) in tensors.items():
        assert len(data) > 5000 or sums[name] == crc64(data), (name, sums[name], crc64(data))
    whole = path.read_bytes()
    header = whole[:8 + struct.unpack_from("<Q", whole)[0]]
    digits = metadata["crc64.header"].encode()
    assert header.count(digits) == 1 and crc64(header.replace(digits, b"0" * 16)) == digits.decode(), digits


def without_checksums(metadata):
    return {name: value for name, value in metadata.items() if name not in ("crc64.header", "crc64.tensors")}


def read_by_package(path):
    from safetensors import safe_open
    names = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32", "uint8": "U8"}
    with safe_open(path, framework="numpy") as file:
        arrays = {name: file.get_tensor(name) for name in file.keys()}
        return file.metadata(), {name: (names[array.dtype.name], list(array.shape), array.tobytes()) for name, array in arrays.items()}


def check_saved(read, path):
    metadata, tensors = read(path)
    assert without_checksums(metadata) == {"epoch": "3", "größe": '"名前"\n'}, metadata
    assert set(tensors) == set(EXPECTED), tensors.keys()
    for name, (dtype, shape) in EXPECTED.items():
        values = b"".join(DTYPES[dtype][1](i) for i in range(math.prod(shape)))
        assert tensors[name] == (dtype, shape, values), (name, tensors[name])


def check_trained(read, path):
    metadata, tensors = read(path)
    assert metadata["step"] == "2" and metadata["arch"] == "resnet18", metadata
    for name, (dtype, shape) in TRAINED.items():
        assert tensors[name][:2] == (dtype, shape), (name, tensors[name][:2])
    weight = struct.unpack("<51712f", tensors["fc.weight"][2])
    assert all(abs(value) < 1 for value in weight) and len(set(weight)) > 50_000, "no weights of a layer"


def check_model(read, path):
    """The model alone: torchvision's names and shapes of a resnet18 for 101 classes, and no others."""
    _, tensors = read(path)
    golden = pathlib.Path(__file__).parent / "golden" / "resnet_names.txt"
    expected = {}
    for line in golden.read_text(encoding="utf-8").splitlines():
        arch, _, name, *sizes = line.split()
        if arch == "resnet18":
            shape = [int(size) for size in sizes]
            expected[name] = [101, *shape[1:]] if name.startswith("fc.") else shape
    assert len(expected) == 122, len(expected)
    assert {name: shape for name, (_, shape, _) in tensors.items()} == expected, set(tensors) ^ set(expected)
    assert all(dtype == ("I64" if name.endswith("num_batches_tracked") else "F32") for name, (dtype, _, _) in tensors.items())


def main():
    reader, shardrun, program, *imagenet = sys.argv[1:]
    read = read_strict
    if reader == "package":
        try:
            import ml_dtypes, numpy, safetensors  # noqa: F401, E401
        except ImportError as missing:
            print(f"skipped: {missing}")
            sys.exit(77)
        read = read_by_package
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "saved.safetensors"
        for ranks in (1, 2, 3):
            subprocess.run([shardrun, "-n", str(ranks), program, str(path)], check=True, timeout=60)
            check_saved(read, path)
            check_checksums(path)
            path.unlink()
        if imagenet:
            train = [shardrun, "-n", "2", *imagenet, *"-a resnet18 --image-size 8 --synthetic 20 --num-classes 101 -b 10 -j 1 "
                     "--steps 2 --enable-model-parallel --overwrite --output".split(), directory]
            for options, saved_with in (("--stem small --val-interval 0", "checkpoint"), ("--val-interval 0", "checkpoint"),
                                        ("--val-interval 1 --epochs 1", "best")):
                (pathlib.Path(directory) / "model.safetensors").unlink(missing_ok=True)
                subprocess.run([*train, *options.split()], check=True, timeout=60, stdout=subprocess.DEVNULL)
                if "small" in options:
                    check_trained(read, pathlib.Path(directory) / "checkpoint.safetensors")
                    continue
                check_model(read, pathlib.Path(directory) / "model.safetensors")
                metadata, tensors = read(pathlib.Path(directory) / "model.safetensors")
                _, whole = read(pathlib.Path(directory) / f"{saved_with}.safetensors")
                assert all(whole[name] == tensors[name] for name in tensors), "other values than those of the checkpoint"
                assert (metadata["arch"], metadata["num_classes"]) == ("resnet18", "101"), metadata
    print(f"the {reader} reader finds the same values")


if __name__ == "__main__":
    main()
