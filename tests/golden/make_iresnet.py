"""Writes iresnet_names.txt and iresnet_values.txt beside this file: what tests/test_iresnet.c compares with. Needs torch
(made with 2.15). The model is written here from its description: insightface's own is not in a package."""
import math
import os

import torch
from torch import nn

from image_model import made_up_images, write_values

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


def special(name, tensor, u):
    if tensor.ndim == 4:
        return (2 * u - 1) * math.sqrt(6 / (tensor.shape[1] * tensor.shape[2] * tensor.shape[3]))
    if tensor.ndim == 2:
        return (2 * u - 1) / math.sqrt(tensor.shape[1])
    return u - 0.25 if name.endswith("prelu.weight") else None


with open(os.path.join(HERE, "iresnet_names.txt"), "w") as file:
    for arch, blocks in BLOCKS.items():
        model = IResNet(blocks)
        trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
        for name, tensor in model.state_dict().items():
            kind = "parameter" if name in trained else "constant"
            file.write(" ".join([arch, kind, name, *map(str, tensor.shape)]) + "\n")
with open(os.path.join(HERE, "iresnet_values.txt"), "w") as file:
    for arch in ("iresnet18", "iresnet50"):
        model = IResNet(BLOCKS[arch], SIDE, WIDTH, FEATURES).double()
        write_values(file, arch, model, special, made_up_images(IMAGES, SIDE), 5)
