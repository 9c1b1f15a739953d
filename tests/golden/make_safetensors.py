"""Makes python.safetensors with the safetensors package, which test_safetensors reads.

Needs the packages safetensors, numpy and ml_dtypes; writes into this script's folder.
"""
import pathlib

import ml_dtypes
import numpy
from safetensors.numpy import save_file

TENSORS = {
    "fc.weight": numpy.arange(6, dtype=numpy.float32).reshape(2, 3) / 2,
    "wide": numpy.array([0.1, -1e300]),
    "bn.num_batches_tracked": numpy.array(2**40, dtype=numpy.int64),
    "ints": numpy.array([-1, 0, 2**31 - 1], dtype=numpy.int32),
    "bytes": numpy.array([[0, 1], [254, 255]], dtype=numpy.uint8),
    "half": numpy.array([1, -2], dtype=numpy.float16),
    "brain": numpy.array([1, -2], dtype=ml_dtypes.bfloat16),
    "größe/名前": numpy.array([3], dtype=numpy.float32),
    "nothing": numpy.zeros((0, 4), dtype=numpy.float32),
}


def main():
    path = pathlib.Path(__file__).parent / "python.safetensors"
    save_file(TENSORS, path, metadata={"format": "pt", "epoch": "7"})


if __name__ == "__main__":
    main()
