"""What bench_gpu.c measures, by PyTorch: same shapes, CUDA's events, medians, several runs between two events.

bench_gpu.py FILE [--limit SECONDS]: appends one JSON object a line: name, way, ms, peak_mib of the allocator, with cuBLAS's workspace
where the way uses it. What FILE has already is not measured again. Ways: eager; compile: torch.compile; where they are installed, liger
(liger_kernel), cce (cut_cross_entropy, whose default leaves small parts of the gradient out) and cce exact (which leaves out none).
Exit code 75: the time was over before.
"""
import argparse
import contextlib
import functools
import gc
import importlib.metadata
import json
import pathlib
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional

import bench_backbone
import gpu_report

try:
    from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction as Liger
except ImportError:
    Liger = None
try:
    from cut_cross_entropy import linear_cross_entropy as cut_cross_entropy
except ImportError:
    cut_cross_entropy = None

WARM_UP, REPETITIONS, FEWEST, QUEUED, LONG_ENOUGH = 3, 15, 5, 5, 1500.0
UNFINISHED = 75
KINDS = {"bfloat16": torch.bfloat16, "tf32": torch.float32, "float32": torch.float32}


class TimeOver(Exception):
    pass


class Bench:
    def __init__(self, path, limit):
        self.path, self.deadline = path, time.monotonic() + limit
        self.done = {(line["name"], line.get("way")) for line in gpu_report.lines_of(path) if "error" not in line}

    def has(self, name, way):
        return (name, way) in self.done

    def write(self, **line):
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        print(json.dumps(line), flush=True)

    def report(self, name, way, run):
        """Measures run(); what fails, as for want of memory, is a line too."""
        if self.has(name, way):
            return
        if time.monotonic() > self.deadline:
            raise TimeOver
        try:
            free()  # workspaces that another way left
            milliseconds = measure(run)
            self.write(name=name, way=way, ms=milliseconds, peak_mib=torch.cuda.max_memory_allocated() >> 20)
        except Exception as error:  # of PyTorch, its compiler or a kernel
            self.write(name=name, way=way, error=f"{type(error).__name__}: {error}".splitlines()[0][:300])


def free():
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()


def time_runs(run, runs):
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(runs):
        run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / runs


def measure(run):
    for _ in range(WARM_UP):
        time_runs(run, 1)
    torch.cuda.reset_peak_memory_stats()  # compilers try things out before
    times = []
    while len(times) < REPETITIONS and (len(times) < FEWEST or QUEUED * sum(times) < LONG_ENOUGH):
        times.append(time_runs(run, QUEUED))
    return statistics.median(times)


@contextlib.contextmanager
def precision(kind):
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = kind == "tf32"
    yield
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


def loss_of_head(x, weight, labels):
    return functional.cross_entropy(functional.linear(x, weight), labels)


def losses_of(ways):
    losses = {"eager": loss_of_head}
    if "compile" in ways:
        torch.compiler.reset()
        losses["compile"] = torch.compile(loss_of_head, dynamic=False)
    if "liger" in ways:
        losses["liger"] = lambda x, weight, labels: Liger.apply(x, weight, labels)[0]
    if "cce" in ways:
        losses["cce"] = cut_cross_entropy
        losses["cce exact"] = functools.partial(cut_cross_entropy, filter_eps=None)
    return losses


def head_step(bench, shape, kind, ways):
    """Forward, loss, backward with the features' gradient, and the fused update by SGD with momentum."""
    classes, features, rows = shape
    name = f"fused head step {classes} x {features}, batch {rows} {kind}"
    if all(bench.has(name, way) for way in ways):
        return
    labels = torch.arange(rows, device="cuda") * 7919 % classes
    x = torch.randn(rows, features, device="cuda").to(KINDS[kind]).requires_grad_()
    weight = nn.Parameter((torch.randn(classes, features, device="cuda") * 0.02).to(KINDS[kind]))
    optimizer = torch.optim.SGD([weight], lr=1e-3, momentum=0.9, weight_decay=1e-4, fused=True)
    losses = losses_of(ways)

    def run(loss):
        loss(x, weight, labels).backward()
        optimizer.step()
        x.grad = weight.grad = None

    with precision(kind):
        for way in ways:
            bench.report(name, way, lambda loss=losses[way]: run(loss))


def head(bench, classes, kind, ways):
    name = f"linear + cross-entropy {classes} {kind}"
    if all(bench.has(name, way) for way in ways):
        return
    labels = torch.arange(2048, device="cuda") * 7919 % classes
    x = torch.randn(2048, 2048, device="cuda").to(KINDS[kind]).requires_grad_()
    weight = (torch.randn(classes, 2048, device="cuda") * 0.02).to(KINDS[kind]).requires_grad_()
    losses = losses_of(ways)

    def run(loss):
        loss(x, weight, labels).backward()
        x.grad = weight.grad = None

    with precision(kind):
        for way in ways:
            bench.report(name, way, lambda loss=losses[way]: run(loss))


def loss_alone(bench, classes, kind):
    name = f"cross-entropy {classes} {kind}"
    if bench.has(name, "eager"):
        return
    labels = torch.arange(2048, device="cuda") * 7919 % classes
    logits = (torch.randn(2048, classes, device="cuda") * 3).to(KINDS[kind]).requires_grad_()

    def run():
        functional.cross_entropy(logits, labels).backward()
        logits.grad = None

    bench.report(name, "eager", run)


def steps(bench):
    if bench.has("gradient norm float32", "eager"):
        return
    parameter = nn.Parameter(torch.randn(1 << 28, device="cuda"))
    parameter.grad = torch.randn(1 << 28, device="cuda")
    optimizer = torch.optim.SGD([parameter], lr=1e-6, momentum=0.9, weight_decay=1e-4, fused=True)
    bench.report("sgd step float32", "eager", optimizer.step)
    optimizer = torch.optim.AdamW([parameter], lr=1e-6, weight_decay=1e-2, fused=True)
    bench.report("adamw step float32", "eager", optimizer.step)
    parameters = list(bench_backbone.resnet("resnet50").cuda().parameters())
    for weight in parameters:
        weight.grad = torch.randn_like(weight)
    optimizer = torch.optim.SGD(parameters, lr=1e-6, momentum=0.9, weight_decay=1e-4, fused=True)
    bench.report(f"sgd step resnet50, {len(parameters)} parameters", "eager", optimizer.step)
    bench.report("gradient norm float32", "eager", lambda: torch.linalg.vector_norm(parameter.grad))


def attention(bench, batch, length, kind):
    """Forward and backward with a causal mask, 16 heads of 64 features."""
    name = f"attention {batch} x 16 x {length} {kind}"
    if bench.has(name, "eager"):
        return
    query, key, value = (torch.randn(batch, 16, length, 64, device="cuda").to(KINDS[kind]).requires_grad_() for _ in range(3))
    dy = torch.randn(batch, 16, length, 64, device="cuda").to(KINDS[kind])

    def run():
        functional.scaled_dot_product_attention(query, key, value, is_causal=True).backward(dy)
        query.grad = key.grad = value.grad = None

    bench.report(name, "eager", run)


def resnet50(bench, kind, way):
    """float32 with TF32, or bfloat16 as bench_gpu.c has it: weights and values in bfloat16, norms in float32."""
    if bench.has(f"resnet50 step {kind}", way):
        return
    torch.backends.cudnn.benchmark = True
    model = bench_backbone.resnet("resnet50").cuda().to(memory_format=torch.channels_last, dtype=KINDS[kind])
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.float()
    images = torch.randn(256, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last, dtype=KINDS[kind])
    labels = torch.arange(256, device="cuda") * 7919 % 1000
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-4)
    forward = torch.compile(model, dynamic=False) if way == "compile" else model

    def run():
        functional.cross_entropy(forward(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    with precision(kind):
        bench.report(f"resnet50 step {kind}", way, run)


def all_of(bench):
    """What is asked first comes first."""
    more = ["compile"] + (["liger"] if Liger else []) + (["cce", "cce exact"] if cut_cross_entropy else [])
    for shape in (125000, 2048, 2048), (1000000, 512, 256):
        head_step(bench, shape, "bfloat16", ["eager", *more])
        free()
    head_step(bench, (1000000, 512, 256), "tf32", ["eager", *more])
    free()
    for classes in (125000, 125001, 15625, 250000):
        head(bench, classes, "bfloat16", ["eager", *more])
        free()
    resnet50(bench, "bfloat16", "eager")
    free()
    for classes in (125000, 125001, 15625, 250000):
        loss_alone(bench, classes, "bfloat16")
        free()
    steps(bench)
    free()
    for batch, length, kind in (16, 1024, "bfloat16"), (2, 8192, "bfloat16"), (16, 1024, "float32"):
        attention(bench, batch, length, kind)
        free()
    resnet50(bench, "tf32", "eager")
    free()
    for classes in (125000, 125001, 15625, 250000):
        head(bench, classes, "tf32", ["eager"])
        free()
    resnet50(bench, "bfloat16", "compile")
    free()
    for classes in (125000, 125001, 15625, 250000):
        head(bench, classes, "float32", ["eager"])
        loss_alone(bench, classes, "float32")
        free()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("--limit", type=float, default=540)
    options = parser.parse_args()
    # Sums in float32, as libshard's.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    bench = Bench(options.file, options.limit)
    if not bench.done:
        bench.write(name="PyTorch", version=torch.__version__)
        for package in "liger-kernel", "cut-cross-entropy":
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                bench.write(name=package, version=importlib.metadata.version(package))
    try:
        all_of(bench)
    except TimeOver:
        print("the time is over; what is left is measured when this is run again")
        return UNFINISHED
    return 0


if __name__ == "__main__":
    sys.exit(main())
