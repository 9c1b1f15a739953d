"""Stands in for torch where it is not installed: what import-insightface and its test use of it, on tensors that are bytes. Files are
pickles; load is for the test's own alone."""
import math
import pickle
import random
import struct


class dtype:
    def __init__(self, name, size):
        self.name, self.size = name, size

    def __repr__(self):
        return f"torch.{self.name}"

    def __reduce__(self):
        return self.name # in a pickle it is this module's value of that name


float16, bfloat16, float32, float64 = dtype("float16", 2), dtype("bfloat16", 2), dtype("float32", 4), dtype("float64", 8)
int64, uint8 = dtype("int64", 8), dtype("uint8", 1)


class Tensor:
    def __init__(self, shape, kind, values):
        self.shape, self.dtype, self.values = tuple(shape), kind, bytes(values)
        assert self.numel() * kind.size == len(self.values)

    def __getitem__(self, rows):
        first, last, _ = rows.indices(self.shape[0])
        size = len(self.values) // self.shape[0]
        return Tensor((last - first, *self.shape[1:]), self.dtype, self.values[first * size:last * size])

    def dim(self):
        return len(self.shape)

    def numel(self):
        return math.prod(self.shape)

    def element_size(self):
        return self.dtype.size

    def reshape(self, shape):
        return Tensor(shape, self.dtype, self.values)

    def view(self, to):
        """-1: of one dimension; of that, a dtype: its bytes as such elements."""
        if to == -1:
            return self.reshape([self.numel()])
        return Tensor([len(self.values) // to.size], to, self.values)

    def contiguous(self):
        return self

    def clone(self):
        return self

    def numpy(self):
        return self

    def tobytes(self):
        return self.values


def randn(*shape):
    return Tensor(shape, float32, b"".join(struct.pack("<f", random.gauss(0, 1)) for _ in range(math.prod(shape))))


def zeros(*shape, dtype=float32):
    return Tensor(shape, dtype, bytes(math.prod(shape) * dtype.size))


def frombuffer(values, dtype):
    return Tensor([len(values) // dtype.size], dtype, values)


def cat(tensors):
    return Tensor((sum(tensor.shape[0] for tensor in tensors), *tensors[0].shape[1:]), tensors[0].dtype, b"".join(tensor.values for tensor in tensors))


def save(content, path):
    with open(path, "wb") as file:
        pickle.dump(content, file)


def load(path, map_location, weights_only):
    assert map_location == "cpu" and weights_only
    with open(path, "rb") as file:
        return pickle.load(file)
