"""Writes resnet_names.txt and resnet_values.txt beside this file: what tests/test_resnet.c
compares with. Needs torch and torchvision (made with 2.15 and 0.29)."""
import math
import os

import numpy
import torch
import torchvision

HERE = os.path.dirname(os.path.abspath(__file__))
CLASSES, IMAGES, SIDE = 10, 4, 64


def made_up(seed, count):
    """In [0, 1), from a hash of the seed and the index; tests/test_resnet.c has the same."""
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
            value = (2 * u - 1) * math.sqrt(6 / (tensor.shape[0] * tensor.shape[2] * tensor.shape[3]))
        elif name.startswith("fc."):
            value = (2 * u - 1) / math.sqrt(model.fc.in_features)
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
    model = getattr(torchvision.models, arch)(num_classes=CLASSES).double()
    fill(model)
    images = torch.from_numpy(made_up(9999, IMAGES * SIDE * SIDE * 3)).reshape(IMAGES, SIDE, SIDE, 3) * 2 - 1
    images = images.float().double().permute(0, 3, 1, 2)
    with torch.no_grad():
        write_numbers(file, arch + " evaluation", model.eval()(images).flatten().tolist())
    logits = model.train()(images)
    write_numbers(file, arch + " training", logits.flatten().tolist())
    loss = torch.nn.functional.cross_entropy(logits, torch.arange(IMAGES) * 3 % CLASSES)
    loss.backward()
    write_numbers(file, arch + " loss", [loss.item()])
    for name, parameter in model.named_parameters():
        write_numbers(file, arch + " gradient " + name, [parameter.grad.abs().sum().item()])
    for name, buffer in model.named_buffers():
        write_numbers(file, arch + " buffer " + name, [buffer.double().sum().item()])


with open(os.path.join(HERE, "resnet_names.txt"), "w") as file:
    for arch in ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152"):
        model = getattr(torchvision.models, arch)()
        parameters = dict(model.named_parameters())
        for name, tensor in model.state_dict().items():
            kind = "parameter" if name in parameters else "buffer"
            file.write(" ".join([arch, kind, name, *map(str, tensor.shape)]) + "\n")
with open(os.path.join(HERE, "resnet_values.txt"), "w") as file:
    write_values(file, "resnet18")
    write_values(file, "resnet50")
