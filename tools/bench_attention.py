"""Forward and backward of attention with a causal mask by PyTorch, in turns with bench_attention.c's.

Usage: bench_attention.py PROGRAM BATCH HEADS LENGTH FEATURES STEPS. PROGRAM is bench_attention; both use as many threads as
OMP_NUM_THREADS says. Prints the medians in milliseconds, and those of the ratios of the steps.
"""
import statistics
import subprocess
import sys
import time

import torch
import torch.nn.functional as F


def main():
    program, steps = sys.argv[1], int(sys.argv[6])
    shape = [int(word) for word in sys.argv[2:6]]
    query, key, value = [torch.randn(shape, requires_grad=True) for _ in range(3)]
    gradient = torch.randn(shape)
    peer = subprocess.Popen([program] + sys.argv[2:7] + ["turns"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def step():
        for x in (query, key, value):
            x.grad = None
        start = time.perf_counter()
        F.scaled_dot_product_attention(query, key, value, is_causal=True).backward(gradient)
        return 1e3 * (time.perf_counter() - start)

    step()
    rows = []
    for _ in range(steps):
        own = step()
        peer.stdin.write("\n")
        peer.stdin.flush()
        fused, composed = [float(word) for word in peer.stdout.readline().split()]
        rows.append((own, fused, composed))
    print(peer.communicate()[0].strip())
    medians = [statistics.median(column) for column in zip(*rows)]
    print("torch %s, %d threads: %.1f ms, one operation %.1f ms, composed %.1f ms" % (torch.__version__, torch.get_num_threads(), *medians))
    print("ratios of the steps: one operation / torch %.2f, one operation / composed %.2f" % (
        statistics.median(row[1] / row[0] for row in rows), statistics.median(row[1] / row[2] for row in rows)))


main()
