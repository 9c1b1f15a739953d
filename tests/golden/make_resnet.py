"""Writes resnet_names.txt and resnet_values.txt beside this file: what tests/test_resnet.c
compares with. Needs torch and torchvision (made with 2.15 and 0.29)."""
import math
import os

import torchvision

from image_model import made_up_images, write_values

HERE = os.path.dirname(os.path.abspath(__file__))
CLASSES, IMAGES, SIDE = 10, 4, 64


def special_of(model):
    def special(name, tensor, u):
        if tensor.ndim == 4:
            return (2 * u - 1) * math.sqrt(6 / (tensor.shape[0] * tensor.shape[2] * tensor.shape[3]))
        return (2 * u - 1) / math.sqrt(model.fc.in_features) if name.startswith("fc.") else None
    return special


with open(os.path.join(HERE, "resnet_names.txt"), "w") as file:
    for arch in ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152"):
        model = getattr(torchvision.models, arch)()
        parameters = dict(model.named_parameters())
        for name, tensor in model.state_dict().items():
            kind = "parameter" if name in parameters else "buffer"
            file.write(" ".join([arch, kind, name, *map(str, tensor.shape)]) + "\n")
with open(os.path.join(HERE, "resnet_values.txt"), "w") as file:
    for arch in ("resnet18", "resnet50"):
        model = getattr(torchvision.models, arch)(num_classes=CLASSES).double()
        write_values(file, arch, model, special_of(model), made_up_images(IMAGES, SIDE), 3)
