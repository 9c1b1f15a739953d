#!/usr/bin/env python3
"""Tokens a second of training: mingpt, and minGPT's model in PyTorch with the same sizes.

    bench.py --mingpt build/release/projects/minGPT/mingpt --shardrun build/release/tools/shardrun TEXT

The model in PyTorch is that of minGPT (https://github.com/karpathy/minGPT): layer norms before attention and MLP, GELU by tanh,
normal initial values, AdamW with weight decay of matrices alone, gradients clipped to a norm of 1. It has one thread for each core,
--threads, torch's scaled_dot_product_attention, a tied head, and the fused AdamW; --compile also compiles it. --attention explicit
is minGPT's own: a softmax of all scores, with dropout of them. mingpt has the same threads, divided among its ranks.

Each is measured by the median of the steps after the first --warmup ones. --rounds N measures both in turns, N times, and prints
the median of the quotients, since the speed of a machine changes while it computes other things, too. --clock processor counts
processor time in place of wall time; it is for one rank of one thread.
"""
import argparse
import json
import math
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

TYPES = {"gpt2": (12, 12, 768), "gpt-mini": (6, 6, 192), "gpt-micro": (4, 4, 128), "gpt-nano": (3, 3, 48)}


def read_arguments(argv):
    parser = argparse.ArgumentParser(prog="bench.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--mingpt", metavar="FILE", help="the program; without it PyTorch alone is measured")
    add("--shardrun", metavar="FILE", help="for --ranks above 1")
    add("--ranks", default="1,2", metavar="LIST", help="of mingpt (%(default)s)")
    add("--model-type", default="gpt-mini", choices=TYPES, help="(%(default)s)")
    add("--tokenizer", default="char", choices=["char", "bpe"], help="(%(default)s)")
    add("--vocab-size", type=int, default=4096, metavar="N", help="of --tokenizer bpe (%(default)s)")
    add("--block-size", type=int, default=128, metavar="N", help="(%(default)s)")
    add("--batch-size", type=int, default=64, metavar="N", help="(%(default)s)")
    add("--steps", type=int, default=12, metavar="N", help="(%(default)s)")
    add("--warmup", type=int, default=3, metavar="N", help="(%(default)s)")
    add("--threads", type=int, default=os.cpu_count(), metavar="N", help="in all (%(default)s)")
    add("--rounds", type=int, default=1, metavar="N", help="(%(default)s)")
    add("--clock", default="wall", choices=["wall", "processor"], help="(%(default)s)")
    add("--attention", default="sdpa", choices=["sdpa", "explicit"], help="of PyTorch (%(default)s)")
    add("--compile", action="store_true", help="torch.compile of PyTorch's model")
    add("--no-torch", action="store_true", help="measure mingpt alone")
    add("text", metavar="TEXT", help="a file or folder, as mingpt takes it")
    wanted = parser.parse_args(argv)
    wanted.ranks = [int(ranks) for ranks in wanted.ranks.split(",")] if wanted.mingpt else []
    if wanted.clock == "processor" and (wanted.threads != 1 or wanted.ranks not in ([], [1])):
        parser.error("--clock processor needs --threads 1 --ranks 1: threads that wait for others take processor time, too")
    return wanted


# ---- mingpt ----

def run_mingpt(wanted, ranks, steps):
    """(the lines of --metrics, the seconds on a processor)"""
    with tempfile.TemporaryDirectory() as folder:
        metrics = pathlib.Path(folder) / "metrics"
        size = ["--vocab-size", wanted.vocab_size] if wanted.tokenizer == "bpe" else [] # of characters it is TEXT's
        command = [wanted.mingpt, "--model-type", wanted.model_type, "--tokenizer", wanted.tokenizer, *size, "--block-size",
                   wanted.block_size, "-b", wanted.batch_size, "--steps", steps, "--epochs", 1000, "--val-interval", 0,
                   "--metrics", metrics, wanted.text]
        if ranks > 1:
            command = [wanted.shardrun, "-n", ranks, *command[:1], "--enable-model-parallel", *command[1:]]
        environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_CORETYPE"}
        environment["OMP_NUM_THREADS"] = str(max(1, wanted.threads // ranks))
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([str(word) for word in command], check=True, env=environment, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    return lines, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure_mingpt(wanted, ranks):
    """(tokens a second, the tokens of the vocabulary); prints them, and the peak of the library's memory on the rank with most."""
    lines, processor = run_mingpt(wanted, ranks, wanted.steps)
    if wanted.clock == "wall":
        seconds = statistics.median(line["step_seconds"] for line in lines[wanted.warmup:])
    else: # without the reading of the text, and the first steps
        seconds = (processor - run_mingpt(wanted, ranks, wanted.warmup)[1]) / (wanted.steps - wanted.warmup)
    speed = wanted.batch_size * wanted.block_size / seconds
    print(f"mingpt, {ranks} rank{'s' * (ranks > 1)}: {speed:.0f} tokens/s, {lines[-1]['memory_mib']['peak']:.0f} MiB a rank at the "
          f"peak, loss {lines[0]['loss']:.3f} to {lines[-1]['loss']:.3f}", flush=True)
    return speed, lines[0]["num_classes"]


# ---- minGPT in PyTorch ----

def make_model(torch, wanted, vocabulary):
    nn, functional = torch.nn, torch.nn.functional
    layers, heads, width = TYPES[wanted.model_type]

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.c_attn, self.attn_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.c_fc, self.mlp_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
            mask = torch.tril(torch.ones(wanted.block_size, wanted.block_size)).bool()
            self.register_buffer("mask", mask, persistent=False)

        def attend(self, x):
            samples, tokens, _ = x.shape
            q, k, v = (part.view(samples, tokens, heads, -1).transpose(1, 2) for part in self.c_attn(x).split(width, dim=2))
            if wanted.attention == "sdpa":
                y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            else:
                scores = (q @ k.transpose(-2, -1)) / math.sqrt(k.shape[-1])
                scores = scores.masked_fill(~self.mask[:tokens, :tokens], float("-inf"))
                y = functional.dropout(functional.softmax(scores, dim=-1), 0.1, self.training) @ v
            return self.attn_proj(y.transpose(1, 2).reshape(samples, tokens, width))

        def forward(self, x):
            x = x + functional.dropout(self.attend(self.ln_1(x)), 0.1, self.training)
            y = functional.gelu(self.c_fc(self.ln_2(x)), approximate="tanh")
            return x + functional.dropout(self.mlp_proj(y), 0.1, self.training)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(wanted.block_size, width)
            self.blocks, self.ln_f = nn.Sequential(*(Block() for _ in range(layers))), nn.LayerNorm(width)
            for name, parameter in self.named_parameters():
                if parameter.dim() > 1:
                    nn.init.normal_(parameter, 0, 0.02 / math.sqrt(2 * layers) if "proj" in name else 0.02)
                elif name.endswith("bias"):
                    nn.init.zeros_(parameter)

        def forward(self, tokens, targets):
            x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
            x = self.ln_f(self.blocks(functional.dropout(x, 0.1, self.training)))
            return functional.cross_entropy((x @ self.wte.weight.T).flatten(0, 1), targets.flatten())

    return Model()


def measure_torch(wanted, vocabulary):
    """Tokens a second, which it prints; of random tokens, on which the speed does not depend."""
    import torch
    torch.set_num_threads(wanted.threads)
    torch.manual_seed(0)
    model = make_model(torch, wanted, vocabulary)
    decayed = [p for name, p in model.named_parameters() if p.dim() > 1 and not name.startswith(("wte", "wpe"))]
    others = [p for name, p in model.named_parameters() if p.dim() <= 1 or name.startswith(("wte", "wpe"))]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0}], lr=5e-4,
                                  betas=(0.9, 0.95), fused=True)
    step = torch.compile(model) if wanted.compile else model
    clock, average = (time.perf_counter, statistics.median) if wanted.clock == "wall" else (time.process_time, statistics.mean)
    seconds, losses = [], []
    for _ in range(wanted.steps):
        tokens = torch.randint(0, vocabulary, (wanted.batch_size, wanted.block_size + 1))
        begun = clock()
        loss = step(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        seconds.append(clock() - begun)
    speed = wanted.batch_size * wanted.block_size / average(seconds[wanted.warmup:])
    print(f"PyTorch {torch.__version__}, {wanted.attention}{', compiled' * wanted.compile}: {speed:.0f} tokens/s, "
          f"loss {losses[0]:.3f} to {losses[-1]:.3f}, {vocabulary} tokens", flush=True)
    return speed


def main(argv):
    if os.environ.pop("OPENBLAS_CORETYPE", None): # it would slow PyTorch down; it must be unset before the process begins
        return subprocess.run([sys.executable, *sys.argv]).returncode
    wanted = read_arguments(argv)
    vocabulary, quotients = wanted.vocab_size, {ranks: [] for ranks in wanted.ranks}
    for _ in range(wanted.rounds):
        speeds = {}
        for ranks in wanted.ranks:
            speeds[ranks], vocabulary = measure_mingpt(wanted, ranks)
        torch_speed = None if wanted.no_torch else measure_torch(wanted, vocabulary)
        for ranks in wanted.ranks if torch_speed else []:
            quotients[ranks].append(speeds[ranks] / torch_speed)
    for ranks, found in quotients.items():
        if found:
            print(f"mingpt, {ranks} rank{'s' * (ranks > 1)}, to PyTorch: {statistics.median(found):.2f}, from {min(found):.2f} to "
                  f"{max(found):.2f} in {len(found)} rounds")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
