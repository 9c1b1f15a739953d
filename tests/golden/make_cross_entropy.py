#!/usr/bin/env python3
"""Writes cross_entropy.txt: losses and gradients by PyTorch.

Words separated by blanks. A block of inputs: "inputs DTYPE ROWS CLASSES", then
"logits", "labels", "probabilities" and "weight", each followed by its numbers.
After it, for each set of options: "case SOFT WEIGHTED SMOOTHING REDUCTION
IGNORE_INDEX", then "loss" (one number, or ROWS for the reduction none) and
"gradient", of the sum of (0.5 + i % 3) * loss[i]. Ends with "end".
"""
import itertools
import os

import torch
import torch.nn.functional as F

ROWS, CLASSES = 6, 5
REDUCTIONS = ["mean", "sum", "none"]
inf, nan = float("inf"), float("nan")


def numbers(name, tensor):
    digits = {torch.float64: "%.17g", torch.float32: "%.9g", torch.bfloat16: "%.5g", torch.float16: "%.6g", torch.int64: "%d"}
    return " ".join([name] + [digits[tensor.dtype] % value for value in tensor.flatten().tolist()]) + "\n"


def inputs(dtype, logits, labels, probabilities, weight):
    tensors = [t.to(dtype) for t in (logits, probabilities, weight)]
    text = "inputs %s %d %d\n" % (str(dtype).split(".")[1], *logits.shape)
    text += numbers("logits", tensors[0]) + numbers("labels", labels)
    text += numbers("probabilities", tensors[1]) + numbers("weight", tensors[2])
    return text, tensors[0], labels, tensors[1], tensors[2]


def case(given, soft, weighted, smoothing, reduction, ignore_index=-100):
    _, logits, labels, probabilities, weight = given
    logits = logits.clone().requires_grad_()
    target = probabilities if soft else labels
    loss = F.cross_entropy(logits, target, weight=weight if weighted else None, label_smoothing=smoothing,
                           reduction=reduction, ignore_index=ignore_index)
    loss.backward(0.5 + (torch.arange(loss.numel()) % 3).to(loss.dtype).reshape(loss.shape))
    text = "case %d %d %.17g %d %d\n" % (soft, weighted, smoothing, REDUCTIONS.index(reduction), ignore_index)
    return text + numbers("loss", loss.detach()) + numbers("gradient", logits.grad)


def main():
    torch.manual_seed(7)
    logits = 3 * torch.randn(ROWS, CLASSES, dtype=torch.float64)
    labels = torch.tensor([4, 0, -100, 2, 1, -100])
    probabilities = torch.softmax(torch.randn(ROWS, CLASSES, dtype=torch.float64), 1)
    weight = 0.25 + torch.rand(CLASSES, dtype=torch.float64)
    text = ""
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        given = inputs(dtype, logits, labels, probabilities, weight)
        text += given[0]
        smoothings = (0.0, 0.1, 1.0) if dtype == torch.float64 else (0.0, 0.1)
        for options in itertools.product((False, True), (False, True), smoothings, REDUCTIONS):
            text += case(given, *options)

    # Where values end; each row by itself, so that none hides another.
    ends = torch.tensor([[1e4, -1e4, 0, 1e4], [-inf, 0, 0, -inf], [0, -inf, 0, 0], [-inf, -inf, -inf, -inf],
                         [0, nan, 0, 0], [0, inf, 0, 0], [inf, 0, 0, 0], [1, 2, 3, 4]], dtype=torch.float64)
    end_labels = torch.tensor([0, 0, 0, 0, 0, 0, 0, -100])
    end_probabilities = torch.tensor([[0.5, 0.25, 0.25, 0]], dtype=torch.float64).repeat(8, 1)
    end_weight = torch.tensor([2, 0, 1, 1], dtype=torch.float64)
    for dtype in (torch.float64, torch.float32):
        given = inputs(dtype, ends, end_labels, end_probabilities, end_weight)
        text += given[0]
        for options in itertools.product((False, True), (False, True), (0.0, 0.25), ("sum", "none")):
            text += case(given, *options)

    # Nothing that counts: 0 / 0.
    for labels, weight in (([-100, -100], [1, 1]), ([0, 0], [0, 1]), ([1, 1], [1, 1])):
        given = inputs(torch.float64, torch.tensor([[1.0, 2.0], [3.0, 1.0]]), torch.tensor(labels),
                       torch.tensor([[0.0, 0.0], [0.0, 0.0]]), torch.tensor(weight))
        text += given[0]
        for options in itertools.product((False, True), (False, True), (0.0, 0.5), REDUCTIONS):
            text += case(given, *options)

    # Other labels that do not count.
    given = inputs(torch.float64, logits, torch.tensor([4, 0, 2, 2, 1, 3]), probabilities, torch.ones(CLASSES))
    text += given[0]
    for ignore_index, smoothing in itertools.product((0, 2, -1), (0.0, 0.1)):
        text += case(given, False, True, smoothing, "mean", ignore_index)
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "cross_entropy.txt"), "w") as file:
        file.write(text + "end\n")


if __name__ == "__main__":
    main()
