"""Images a second of a ResNet, forward and backward, by PyTorch: bench_backbone.c's peer.

Usage: bench_backbone.py ARCH SIZE BATCH [SECONDS]. The model is written out here, as
torchvision's is not always there. Channels last, the fastest layout on a CPU.
"""
import statistics
import sys
import time

import torch
from torch import nn

LAYERS = {"resnet18": (False, [2, 2, 2, 2]), "resnet50": (True, [3, 4, 6, 3])}


class Block(nn.Module):
    def __init__(self, inputs, width, stride, bottleneck):
        super().__init__()
        outputs = width * (4 if bottleneck else 1)
        shapes = [(inputs, width, 1, 1), (width, width, 3, stride), (width, outputs, 1, 1)] if bottleneck else \
            [(inputs, width, 3, stride), (width, outputs, 3, 1)]
        layers = []
        for index, (i, o, kernel, s) in enumerate(shapes):
            layers += [nn.Conv2d(i, o, kernel, s, kernel // 2, bias=False), nn.BatchNorm2d(o)]
            if index + 1 < len(shapes):
                layers.append(nn.ReLU(inplace=True))
        self.body = nn.Sequential(*layers)
        self.skip = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.skip = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.relu(self.body(x) + self.skip(x))


def resnet(arch):
    bottleneck, counts = LAYERS[arch]
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for stage, count in enumerate(counts):
        width = 64 << stage
        for index in range(count):
            layers.append(Block(inputs, width, 2 if stage and not index else 1, bottleneck))
            inputs = width * (4 if bottleneck else 1)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))


def main():
    arch, size, batch = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    seconds = float(sys.argv[4]) if len(sys.argv) > 4 else 20.0
    torch.manual_seed(0)
    model = resnet(arch).to(memory_format=torch.channels_last)
    x = torch.randn(batch, 3, size, size).to(memory_format=torch.channels_last)
    labels = torch.arange(batch) * 37 % 1000
    loss_of = nn.CrossEntropyLoss()
    times, start = [], time.perf_counter()
    while len(times) < 5 or time.perf_counter() - start < seconds:
        began = time.perf_counter()
        loss_of(model(x), labels).backward()
        for parameter in model.parameters():
            parameter.grad = None
        times.append(time.perf_counter() - began)
    print(f"{arch} {size} {batch} {batch / statistics.median(times[2:]):.2f} images/s (PyTorch {torch.__version__})")


if __name__ == "__main__":
    main()
