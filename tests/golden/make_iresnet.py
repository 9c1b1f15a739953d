"""Writes iresnet_names.txt and iresnet_values.txt beside this file: what tests/test_iresnet.c compares with. Needs torch
(made with 2.15). The model is written here from its description: insightface's own is not in a package."""
import math
import os

import numpy
import torch
from torch import nn

HERE = os.path.dirname(os.path.abspath(__file__))
BLOCKS = {"iresnet18": (2, 2, 2, 2), "iresnet34": (3, 4, 6, 3), "iresnet50": (3, 4, 14, 3), "iresnet100": (3, 13, 30, 3),
          "iresnet200": (6, 26, 60, 6)}
IMAGES, SIDE, WIDTH, FEATURES = 3, 27, 8, 12  # 27: 14, 7, 4, 2 after the stages, each rounded up


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.prelu = nn.PReLU(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        if stride > 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = self.bn3(self.conv2(self.prelu(self.bn2(self.conv1(self.bn1(x))))))
        return y + (self.downsample(x) if hasattr(self, "downsample") else x)


class IResNet(nn.Module):
    def __init__(self, blocks, side=112, width=64, features=512):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.prelu = nn.PReLU(width)
        inputs = width
        for stage, count in enumerate(blocks):
            outputs = width << stage
            layers = [Block(inputs if i == 0 else outputs, outputs, 2 if i == 0 else 1) for i in range(count)]
            setattr(self, f"layer{stage + 1}", nn.Sequential(*layers))
            inputs, side = outputs, (side + 1) // 2
        self.bn2 = nn.BatchNorm2d(inputs)
        self.dropout = nn.Dropout(0)
        self.fc = nn.Linear(inputs * side * side, features)
        self.features = nn.BatchNorm1d(features)
        self.features.weight.requires_grad = False

    def forward(self, x):
        x = self.prelu(self.bn1(self.conv1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.features(self.fc(self.dropout(torch.flatten(self.bn2(x), 1))))


def made_up(seed, count):
    """In [0, 1), from a hash of the seed and the index; tests/test_iresnet.c has the same."""
    x = (numpy.arange(count, dtype=numpy.uint64) + numpy.uint64(1 + 1000003 * (seed + 1))) & numpy.uint64(0xFFFFFFFF)
    for multiplier, shift in ((2654435761, 15), (2246822519, 13), (3266489917, 16)):
        x = (x * numpy.uint64(multiplier)) & numpy.uint64(0xFFFFFFFF)
        x ^= x >> numpy.uint64(shift)
    return x.astype(numpy.float64) / 2.0**32


def fill(model):
    for seed, (name, tensor) in enumerate(model.state_dict().items()):
        if tensor.dtype == torch.int64:
            continue
        u = torch.from_numpy(made_up(seed, tensor.numel())).reshape(tensor.shape)
        if tensor.ndim == 4:
            value = (2 * u - 1) * math.sqrt(6 / (tensor.shape[1] * tensor.shape[2] * tensor.shape[3]))
        elif tensor.ndim == 2:
            value = (2 * u - 1) / math.sqrt(tensor.shape[1])
        elif name.endswith("prelu.weight"):
            value = u - 0.25
        elif name.endswith("bn3.weight"):  # small, so that what blocks add does not grow from block to block
            value = 0.2 + 0.2 * u
        elif name.endswith("weight") or name.endswith("running_var"):
            value = 0.5 + u
        else:
            value = u - 0.5
        tensor.copy_(value.float())


def write_numbers(file, name, numbers):
    file.write(name + "".join(" %.9g" % number for number in numbers) + "\n")


def write_values(file, arch):
    model = IResNet(BLOCKS[arch], SIDE, WIDTH, FEATURES).double()
    fill(model)
    images = torch.from_numpy(made_up(9999, IMAGES * SIDE * SIDE * 3)).reshape(IMAGES, SIDE, SIDE, 3) * 2 - 1
    images = images.float().double().permute(0, 3, 1, 2)
    with torch.no_grad():
        write_numbers(file, arch + " evaluation", model.eval()(images).flatten().tolist())
    features = model.train()(images)
    write_numbers(file, arch + " training", features.flatten().tolist())
    loss = nn.functional.cross_entropy(features, torch.arange(IMAGES) * 5 % FEATURES)
    loss.backward()
    write_numbers(file, arch + " loss", [loss.item()])
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            write_numbers(file, arch + " gradient " + name, [parameter.grad.abs().sum().item()])
    for name, buffer in model.named_buffers():
        write_numbers(file, arch + " buffer " + name, [buffer.double().sum().item()])


with open(os.path.join(HERE, "iresnet_names.txt"), "w") as file:
    for arch, blocks in BLOCKS.items():
        model = IResNet(blocks)
        trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
        for name, tensor in model.state_dict().items():
            kind = "parameter" if name in trained else "constant"
            file.write(" ".join([arch, kind, name, *map(str, tensor.shape)]) + "\n")
with open(os.path.join(HERE, "iresnet_values.txt"), "w") as file:
    write_values(file, "iresnet18")
    write_values(file, "iresnet50")
