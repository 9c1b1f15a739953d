"""What bench_gpu.c measures, by PyTorch in eager mode: same shapes, CUDA's events, medians.

Prints one JSON object a line: name, ms.
"""
import json
import statistics

import torch
from torch import nn
from torch.nn import functional

import bench_backbone

WARM_UP, REPETITIONS = 3, 15


def measure(run):
    times = []
    for _ in range(WARM_UP + REPETITIONS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times[WARM_UP:])


def report(name, run):
    print(json.dumps({"name": name, "ms": measure(run)}), flush=True)


def allow_tf32(on):
    torch.backends.cuda.matmul.allow_tf32 = on
    torch.backends.cudnn.allow_tf32 = on


def heads(classes):
    labels = torch.arange(2048, device="cuda") * 7919 % classes
    for kind, dtype in (("float32", torch.float32), ("tf32", torch.float32), ("bfloat16", torch.bfloat16)):
        allow_tf32(kind == "tf32")
        x = torch.randn(2048, 2048, device="cuda", dtype=dtype, requires_grad=True)
        weight = (torch.randn(classes, 2048, device="cuda") * 0.02).to(dtype).requires_grad_()

        def head():
            functional.cross_entropy(functional.linear(x, weight), labels).backward()
            x.grad = weight.grad = None

        report(f"linear + cross-entropy {classes // 1000}k {kind}", head)
        del x, weight
        if kind != "tf32":
            logits = (torch.randn(2048, classes, device="cuda") * 3).to(dtype).requires_grad_()

            def loss():
                functional.cross_entropy(logits, labels).backward()
                logits.grad = None

            report(f"cross-entropy {classes // 1000}k {kind}", loss)
            del logits
        torch.cuda.empty_cache()
    allow_tf32(False)


def steps():
    parameter = nn.Parameter(torch.randn(1 << 28, device="cuda"))
    parameter.grad = torch.randn(1 << 28, device="cuda")
    optimizer = torch.optim.SGD([parameter], lr=1e-6, momentum=0.9, weight_decay=1e-4, fused=True)
    report("sgd step float32", optimizer.step)
    optimizer = torch.optim.AdamW([parameter], lr=1e-6, weight_decay=1e-2, fused=True)
    report("adamw step float32", optimizer.step)
    report("gradient norm float32", lambda: torch.linalg.vector_norm(parameter.grad))
    pieces = list(bench_backbone.resnet("resnet50").cuda().parameters())
    for piece in pieces:
        piece.grad = torch.randn_like(piece)
    optimizer = torch.optim.SGD(pieces, lr=1e-6, momentum=0.9, weight_decay=1e-4, fused=True)
    report(f"sgd step resnet50, {len(pieces)} pieces", optimizer.step)


def resnet50(kind):
    """float32 with TF32, or bfloat16 as bench_gpu.c has it: weights and values in bfloat16, norms in float32."""
    allow_tf32(kind == "tf32")
    torch.backends.cudnn.benchmark = True
    dtype = torch.bfloat16 if kind == "bfloat16" else torch.float32
    model = bench_backbone.resnet("resnet50").cuda().to(memory_format=torch.channels_last, dtype=dtype)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.float()
    images = torch.randn(256, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last, dtype=dtype)
    labels = torch.arange(256, device="cuda") * 7919 % 1000
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-4)

    def step():
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    report(f"resnet50 step {kind}", step)
    allow_tf32(False)


def main():
    print(json.dumps({"name": "PyTorch", "version": torch.__version__}))
    for classes in (125000, 250000):
        heads(classes)
    steps()
    torch.cuda.empty_cache()
    for kind in ("tf32", "bfloat16"):
        resnet50(kind)


main()
