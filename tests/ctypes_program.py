"""The README's program through ctypes: a layer that is split over the ranks is trained, saved and inspected. The ranks
find each other by an exchange in Python, through files next to FILE.

Usage: shardrun -n 2 python3 ctypes_program.py LIBSHARD FILE
"""
import ctypes
import os
import pathlib
import sys
import time
from ctypes import CFUNCTYPE, POINTER, byref, c_bool, c_char_p, c_double, c_float, c_int, c_int64, c_size_t, c_void_p



def load(path):
    """By a relative name, as with a relative LD_LIBRARY_PATH. Then the program goes to another folder."""
    before = os.getcwd()
    os.chdir(os.path.dirname(path))
    library = ctypes.CDLL(os.path.join(".", os.path.basename(path)))
    os.chdir(before)
    return library


shard = load(sys.argv[1])
INT64, COLUMN = 4, 2


class Shape(ctypes.Structure):
    _fields_ = [("ndim", c_int), ("dim", c_int64 * 8)]

    def __init__(self, *dims):
        super().__init__(len(dims), (c_int64 * 8)(*dims))


class Options(ctypes.Structure):
    """A struct whose first field is its size; `defaults` are those of SHARD_..._OPTIONS_INIT. The size ends with the last field:
    sizeof has padding behind it, where the library may have fields whose default is not 0."""

    def __init__(self, **fields):
        last = getattr(type(self), self._fields_[-1][0])
        super().__init__(size=last.offset + last.size, **{**self.defaults, **fields})


class TensorOptions(Options):
    _fields_ = [("size", c_size_t), ("dtype", c_int), ("device", c_void_p), ("requires_grad", c_bool)]
    defaults = {}


EXCHANGE = CFUNCTYPE(c_int, c_void_p, POINTER(c_int), c_int, c_void_p, c_void_p, c_size_t)


class InitOptions(Options):
    _fields_ = [("size", c_size_t), ("rank", c_int), ("ranks", c_int), ("exchange", EXCHANGE), ("context", c_void_p)]
    defaults = {"ranks": 1}


class MeshOptions(Options):
    _fields_ = [("size", c_size_t), ("model", c_int), ("data", c_int)]
    defaults = {"model": 1, "data": -1}


class SgdOptions(Options):
    # The first fields alone, as an older header had them: the library has the defaults of the others.
    _fields_ = [("size", c_size_t), ("lr", c_double), ("momentum", c_double)]
    defaults = {"lr": 1e-3}


class LayerNormOptions(Options):
    # The library has `bias`, true, in the padding behind this field.
    _fields_ = [("size", c_size_t), ("elementwise_affine", c_bool)]
    defaults = {"elementwise_affine": True}


class HeadBackwardOptions(Options):
    _fields_ = [("size", c_size_t), ("accumulate", c_bool), ("deferred", c_bool)]
    defaults = {}


TAKE_ROWS = CFUNCTYPE(c_int, c_void_p, c_void_p, c_int64, c_int64, POINTER(c_float))


def function(name, result, *arguments):
    found = getattr(shard, name)
    found.restype, found.argtypes = result, arguments
    return found


pointer = c_void_p
init_with = function("shard_init_with", c_int, POINTER(InitOptions))
transport = function("shard_group_transport", c_char_p, pointer)
finalize = function("shard_finalize", c_int)
world = function("shard_world", pointer)
group_rank = function("shard_group_rank", c_int, pointer)
group_size = function("shard_group_size", c_int, pointer)
last_error = function("shard_last_error", c_char_p)
clear_error = function("shard_clear_error", None)
device_open = function("shard_device_open", pointer, c_char_p)
mesh_create = function("shard_mesh_create_with", pointer, POINTER(MeshOptions))
mesh_destroy = function("shard_mesh_destroy", None, pointer)
model_group = function("shard_mesh_model_group", pointer, pointer)
linear = function("shard_nn_linear_with", pointer, c_int64, c_int64, pointer)
parallel_linear = function("shard_nn_parallel_linear_with", pointer, c_int64, c_int64, c_int, pointer, pointer)
relu = function("shard_nn_relu", pointer)
layer_norm = function("shard_nn_layer_norm_with", pointer, c_int64, c_double, POINTER(LayerNormOptions))
sequential = function("shard_nn_sequential_of", pointer, c_int, POINTER(pointer))
parameters_of = function("shard_parameters", pointer, pointer)
tensors_destroy = function("shard_tensors_destroy", None, pointer)
sgd_with = function("shard_sgd_with", pointer, pointer, POINTER(SgdOptions))
normal = function("shard_normal_with", pointer, Shape, c_double, c_double, pointer)
from_host = function("shard_from_host_with", pointer, pointer, Shape, POINTER(TensorOptions))
forward = function("shard_forward", pointer, pointer, pointer)
cross_entropy = function("shard_cross_entropy_with", pointer, pointer, pointer, pointer, pointer)
backward = function("shard_backward", c_int, pointer)
full = function("shard_full_with", pointer, Shape, c_double, pointer)
head_forward = function("shard_linear_cross_entropy_forward_with", pointer, *[pointer] * 7)
head_backward = function("shard_head_backward_with", c_int, *[pointer] * 6)
head_saved_destroy = function("shard_head_saved_destroy", None, pointer)
take_gradient_rows = function("shard_take_gradient_rows", c_int, pointer, TAKE_ROWS, pointer)
step = function("shard_step", c_int, pointer)
item = function("shard_item", c_double, pointer)
release = function("shard_release", None, pointer)
save_module = function("shard_save_module", c_int, pointer, c_char_p)
inspect = function("shard_inspect", pointer, c_char_p, pointer)
tensors_count = function("shard_tensors_count", c_int64, pointer)
optimizer_destroy = function("shard_optimizer_destroy", None, pointer)
module_destroy = function("shard_module_destroy", None, pointer)


def train(model, optimizer, steps):
    labels = (c_int64 * 4)(7, 4321, 9999, 0)
    losses = []
    for _ in range(steps):
        x = normal(Shape(4, 20), 0.0, 1.0, None)
        target = from_host(labels, Shape(4), byref(TensorOptions(dtype=INT64)))
        y = forward(model, x)
        loss = cross_entropy(y, target, None, None)
        assert backward(loss) == 0 and step(optimizer) == 0, last_error()
        losses.append(item(loss))
        for tensor in (x, target, y, loss):
            release(tensor)
    return losses


def take_rows():
    """The head's forward and backward as a torch.autograd.Function calls them; the sum of the weight's gradient, by rows. The
    derivatives by a row's logits add up to 0, and so do the rows of the gradient."""
    labels = (c_int64 * 4)(7, 43, 99, 0)
    x, weight = normal(Shape(4, 20), 0.0, 1.0, None), normal(Shape(100, 20), 0.0, 1.0, None)
    target, dy = from_host(labels, Shape(4), byref(TensorOptions(dtype=INT64))), full(Shape(), 1.0, None)
    saved, dx, dweight = pointer(), pointer(), pointer()
    loss = head_forward(x, weight, None, target, None, byref(saved), None)
    assert loss, last_error()
    options = HeadBackwardOptions(deferred=True)
    assert head_backward(saved, dy, byref(options), byref(dx), byref(dweight), None) == 0, last_error()
    head_saved_destroy(saved)
    sums = {}

    @TAKE_ROWS
    def take(_, device, first, count, gradient):  # by several threads at a time
        for i in range(count):
            sums[first + i] = sum(gradient[20 * i:20 * (i + 1)])
        return 0

    assert take_gradient_rows(dweight, take, None) == 0, last_error()
    assert sorted(sums) == list(range(100)) and max(sums.values()) > 0.1 and abs(sum(sums.values())) < 1e-4, sums
    for tensor in (x, weight, target, dy, loss, dx, dweight):
        release(tensor)


def file_exchange(path, rank):
    """An all-gather: each rank writes a file, and reads those of the others."""
    calls = 0

    @EXCHANGE
    def exchange(_, ranks, count, send, receive, size):
        nonlocal calls
        mine = path.with_name(f"{path.name}.{calls}.{rank}")
        new = mine.with_name(mine.name + ".new")
        new.write_bytes(ctypes.string_at(send, size))
        new.rename(mine)
        for i in range(count):
            theirs = path.with_name(f"{path.name}.{calls}.{ranks[i]}")
            while not theirs.exists():
                time.sleep(0.001)
            ctypes.memmove(receive + i * size, theirs.read_bytes(), size)
        if calls:  # every rank has read the one before
            path.with_name(f"{path.name}.{calls - 1}.{rank}").unlink()
        calls += 1
        return 0

    return exchange


def look_for_plugin():
    """In the library's folder, if it was built without this plugin."""
    folder = os.path.realpath(os.path.dirname(sys.argv[1])).encode()
    if not device_open(b"cuda"):
        assert b"no libshard-cuda.so in " not in last_error() or folder in last_error(), last_error()
        clear_error()


def takes_defaults():
    """Of a field that is not in the struct."""
    norm = layer_norm(4, 1e-5, byref(LayerNormOptions()))
    parameters = parameters_of(norm)
    assert tensors_count(parameters) == 2, "weight and bias"
    tensors_destroy(parameters)
    module_destroy(norm)


def main():
    look_for_plugin()
    takes_defaults()
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    path = pathlib.Path(sys.argv[2] + f".exchange.{os.getppid()}")
    exchange = file_exchange(path, rank)
    assert init_with(byref(InitOptions(rank=rank, ranks=ranks, exchange=exchange))) == 0, last_error()
    assert transport(world()) == b"shm", transport(world())
    mesh = mesh_create(byref(MeshOptions(model=group_size(world()))))
    layers = (pointer * 3)(linear(20, 64, None), relu(), parallel_linear(64, 10000, COLUMN, model_group(mesh), None))
    model = sequential(3, layers)
    parameters = parameters_of(model)
    optimizer = sgd_with(parameters, byref(SgdOptions(lr=0.1, momentum=0.9)))
    tensors_destroy(parameters)
    assert optimizer, last_error()
    losses = train(model, optimizer, 20)
    if os.environ.get("SHARD_DEVICE", "cpu") == "cpu":  # rows of a GPU are not the host's to read
        take_rows()
    assert save_module(model, sys.argv[2].encode()) == 0, last_error()
    found = inspect(sys.argv[2].encode(), None)
    assert tensors_count(found) == 4, last_error()
    tensors_destroy(found)
    print(f"rank {group_rank(world())} of {group_size(world())}: loss {losses[0]:.4f} to {losses[-1]:.4f}")
    assert group_size(world()) == 2 and losses[-1] < 0.5 * losses[0], losses
    optimizer_destroy(optimizer)
    module_destroy(model)
    mesh_destroy(mesh)
    failed = finalize()
    for left in path.parent.glob(f"{path.name}.*.{rank}"):
        left.unlink()
    return failed


sys.exit(main())
