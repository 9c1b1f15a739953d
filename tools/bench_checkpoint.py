#!/usr/bin/env python3
"""PyTorch's part of bench_checkpoint: torch.distributed.checkpoint's save and async_save of a weight that is split by rows.

Usage: bench_checkpoint.py DIRECTORY [ROWS COLUMNS [RANKS]]

By default 1000000 x 512 float32 over 2 ranks of gloo, each with one file, which it syncs. The staged copy is kept and reused
(DefaultStager, without pinned memory, as there is no GPU); `thread` and `process` are the AsyncCheckpointerType. A line has the
seconds until the files are there, and in brackets those for which training would wait: in async_save, and for its result when it
is done. The ranks compute nothing meanwhile. Each number is the slowest rank's; lines are repetitions, the first of which has
fresh memory and, of `process`, starts the process.
"""
import os
import shutil
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

REPETITIONS = 5


def largest(*seconds):
    numbers = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(numbers, dist.ReduceOp.MAX)
    return numbers.tolist()


def report(name, gigabytes, total, waits):
    total, *waits = largest(total, *waits)
    if dist.get_rank() == 0:
        note = f"   (waits {sum(waits):.3f} s: {' + '.join(f'{w:.3f}' for w in waits)})" if waits else ""
        print(f"  {name:<18} {total:7.2f} s {gigabytes / total:6.2f} GB/s{note}", flush=True)


def run(rank, ranks, meeting, folder, rows, columns):
    torch.set_num_threads(max(1, os.cpu_count() // ranks))
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks)
    mesh = init_device_mesh("cpu", (ranks,))
    local = torch.ones(rows // ranks, columns)
    state = {"weight": DTensor.from_local(local, mesh, [Shard(0)])}
    gigabytes = rows // ranks * ranks * columns * 4e-9
    background = dist.new_group(backend="gloo")
    options = {"thread": AsyncCheckpointerType.THREAD, "process": AsyncCheckpointerType.PROCESS}
    stagers = {name: DefaultStager(StagingOptions(use_pinned_memory=False, use_shared_memory=name == "process",
                                                  use_async_staging=False, use_non_blocking_copy=False)) for name in options}

    def measure(name, save):
        dist.barrier()
        start = time.perf_counter()
        future = save()
        begun = time.perf_counter()
        while future is not None and not future.done():
            time.sleep(0.02)
        done = time.perf_counter()
        if future is not None:
            future.result()
        end = time.perf_counter()
        report(name, gigabytes, end - start, [begun - start, end - done] if future is not None else [])
        dist.barrier()
        if rank == 0:
            shutil.rmtree(folder)
        dist.barrier()

    for _ in range(REPETITIONS):
        measure("dcp.save", lambda: dcp.save(state, storage_writer=dcp.FileSystemWriter(folder)) and None)
        for name, kind in options.items():
            measure(f"async, {name}",
                    lambda: dcp.async_save(state, storage_writer=dcp.FileSystemWriter(folder), process_group=background,
                                           async_checkpointer_type=kind, async_stager=stagers[name]))
    dist.destroy_process_group()


def main():
    if len(sys.argv) not in (2, 4, 5):
        sys.exit(__doc__)
    rows, columns = (int(sys.argv[2]), int(sys.argv[3])) if len(sys.argv) > 2 else (1000000, 512)
    ranks = int(sys.argv[4]) if len(sys.argv) > 4 else 2
    folder = os.path.join(sys.argv[1], "bench.dcp")
    print(f"torch {torch.__version__}: {rows} x {columns} float32, split by rows over {ranks} ranks")
    with tempfile.TemporaryDirectory() as meeting:
        torch.multiprocessing.spawn(run, (ranks, os.path.join(meeting, "store"), folder, rows, columns), ranks)


if __name__ == "__main__":
    main()
