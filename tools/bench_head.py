"""A training step of a last layer whose classes are split over ranks, by PyTorch: bench_head.c's peers.

Usage: bench_head.py torchshard|torch CLASSES BATCH RANKS [STEPS [FEATURES]]. torchshard is TorchShard's ParallelLinear and
ParallelCrossEntropyLoss, with its folder in PYTHONPATH; torch is written by hand: the exchange of maxima and sums, and a
gradient that overwrites the logits. SGD with momentum 0.9 and weight decay 1e-4, float32, one thread a rank, gloo. Prints JSON:
seconds of a step, of the slowest rank, and the most resident memory of a rank during the steps.
"""
import json
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from torch.nn import functional

WARM_UP = 2


class SplitCrossEntropy(torch.autograd.Function):
    """The mean loss of the classes from `start` on, logits [rows, local classes]; the backward overwrites them."""

    @staticmethod
    def forward(context, logits, labels, start):
        largest = logits.max(1, keepdim=True).values
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        local = labels - start
        mine = (local >= 0) & (local < logits.shape[1])
        rows = mine.nonzero().squeeze(1)
        of_label = torch.zeros(len(labels))
        of_label[rows] = logits[rows, local[rows]] - largest[rows, 0]
        exponentials = logits.detach().sub_(largest).exp_()
        both = torch.stack([exponentials.sum(1), of_label])
        dist.all_reduce(both)
        context.save_for_backward(exponentials, both[0], rows, local[rows])
        return (both[0].log() - both[1]).mean()

    @staticmethod
    def backward(context, dy):
        exponentials, total, rows, classes = context.saved_tensors
        scale = dy / len(total)
        gradient = exponentials.mul_((scale / total).unsqueeze(1))
        gradient[rows, classes] -= scale
        return gradient, None, None


class Gather(torch.autograd.Function):
    """Rows of all ranks; the backward sums their gradients."""

    @staticmethod
    def forward(context, x):
        context.rows = len(x)
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x)
        return torch.cat(parts)

    @staticmethod
    def backward(context, dy):
        dist.all_reduce(dy)
        return dy[dist.get_rank() * context.rows:][:context.rows]


def by_torchshard(classes, features):
    import torchshard
    torchshard.distributed.init_process_group(group_size=dist.get_world_size())
    layer = torchshard.nn.ParallelLinear(features, classes, dim=1)
    loss_of = torchshard.nn.ParallelCrossEntropyLoss()

    def loss(x, labels):
        x = torchshard.distributed.gather(x, dim=0)
        return loss_of(layer(x), torchshard.distributed.gather(labels, dim=0))
    return layer, loss


def by_hand(classes, features):
    ranks, rank = dist.get_world_size(), dist.get_rank()
    start = classes * rank // ranks
    layer = torch.nn.Linear(features, classes * (rank + 1) // ranks - start)

    def loss(x, labels):
        parts = [torch.empty_like(labels) for _ in range(ranks)]
        dist.all_gather(parts, labels)
        return SplitCrossEntropy.apply(functional.linear(Gather.apply(x), layer.weight, layer.bias), torch.cat(parts), start)
    return layer, loss


def resident(name):
    with open("/proc/self/status", encoding="ascii") as file:
        return 1024 * next(int(line.split()[1]) for line in file if line.startswith(name))


def run(rank, peer, classes, batch, ranks, steps, features, port):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    layer, loss_of = (by_torchshard if peer == "torchshard" else by_hand)(classes, features)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    rows, times = batch // ranks, []
    labels = (torch.arange(rows) + rank * rows) * 104729 % classes
    for step in range(-WARM_UP, steps):
        if step == 0:
            with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
                file.write("5")  # VmHWM begins anew
        x = torch.randn(rows, features, requires_grad=True)
        dist.barrier()
        began = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss_of(x, labels).backward()
        optimizer.step()
        seconds = torch.tensor(time.perf_counter() - began, dtype=torch.float64)
        dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
        if step >= 0:
            times.append(seconds.item())
    most = torch.tensor(resident("VmHWM"))
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    if rank == 0:
        print(json.dumps({"peer": peer, "torch": torch.__version__, "ranks": ranks, "classes": classes, "features": features, "batch": batch,
                          "step_seconds": {"median": statistics.median(times), "min": min(times), "max": max(times)},
                          "rss_bytes": most.item()}))


def main():
    peer, (classes, batch, ranks) = sys.argv[1], map(int, sys.argv[2:5])
    steps, features = ([int(word) for word in sys.argv[5:]] + [10, 512][len(sys.argv) - 5:])
    processes.spawn(run, (peer, classes, batch, ranks, steps, features, 29500 + classes % 997), nprocs=ranks)


if __name__ == "__main__":
    main()
