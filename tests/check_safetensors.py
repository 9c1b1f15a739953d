"""Whether the safetensors package reads what libshard saves, value for value.

Usage: check_safetensors.py SHARDRUN CHECKPOINT_PROGRAM. Exits with 77 (skipped) where
the package, numpy or ml_dtypes (its bfloat16) is missing.
"""
import pathlib
import subprocess
import sys
import tempfile

try:
    import ml_dtypes
    import numpy
    from safetensors import safe_open
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

EXPECTED = {
    "fc.weight": (numpy.float32, (13, 7)),
    "fc.columns": (numpy.float32, (13, 7)),
    "fc.bias": (numpy.float64, (13,)),
    "größe/名前": (numpy.float16, (2, 2)),
    "brain": (ml_dtypes.bfloat16, (4,)),
    "bn.num_batches_tracked": (numpy.int64, ()),
    "ints": (numpy.int32, (3, 1, 2)),
    "bytes": (numpy.uint8, (5,)),
    "nothing": (numpy.float32, (0, 4)),
}


def check(path):
    with safe_open(path, framework="numpy") as file:
        assert file.metadata() == {"epoch": "3", "größe": '"名前"\n'}, file.metadata()
        assert set(file.keys()) == set(EXPECTED), file.keys()
        for name, (dtype, shape) in EXPECTED.items():
            found = file.get_tensor(name)
            step = 1 if numpy.issubdtype(dtype, numpy.integer) else 0.5
            wanted = (numpy.arange(numpy.prod(shape, dtype=int)) * step).astype(dtype).reshape(shape)
            assert found.dtype == dtype and found.shape == shape, (name, found.dtype, found.shape)
            assert found.tobytes() == wanted.tobytes(), (name, found)


def main():
    shardrun, program = sys.argv[1:]
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "saved.safetensors"
        for ranks in (1, 2, 3):
            subprocess.run([shardrun, "-n", str(ranks), program, str(path)], check=True, timeout=60)
            check(path)
            path.unlink()
    print("the safetensors package reads the same values")


if __name__ == "__main__":
    main()
