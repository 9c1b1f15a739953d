"""What make_resnet.py and make_iresnet.py share: made-up values, and the lines that tests/support/golden_model.c reads."""
import numpy
import torch


def made_up(seed, count):
    """In [0, 1), from a hash of the seed and the index; tests/support/golden_model.c has the same."""
    x = (numpy.arange(count, dtype=numpy.uint64) + numpy.uint64(1 + 1000003 * (seed + 1))) & numpy.uint64(0xFFFFFFFF)
    for multiplier, shift in ((2654435761, 15), (2246822519, 13), (3266489917, 16)):
        x = (x * numpy.uint64(multiplier)) & numpy.uint64(0xFFFFFFFF)
        x ^= x >> numpy.uint64(shift)
    return x.astype(numpy.float64) / 2.0**32


def made_up_images(images, side):
    pixels = torch.from_numpy(made_up(9999, images * side * side * 3)).reshape(images, side, side, 3) * 2 - 1
    return pixels.float().double().permute(0, 3, 1, 2)


def fill(model, special):
    """special(name, tensor, u) is the tensor's value from u in [0, 1), or None if it is of a general kind."""
    for seed, (name, tensor) in enumerate(model.state_dict().items()):
        if tensor.dtype == torch.int64:
            continue
        u = torch.from_numpy(made_up(seed, tensor.numel())).reshape(tensor.shape)
        value = special(name, tensor, u)
        if value is None and name.endswith("bn3.weight"):  # small, so that what blocks add does not grow from block to block
            value = 0.2 + 0.2 * u
        elif value is None and (name.endswith("weight") or name.endswith("running_var")):
            value = 0.5 + u
        elif value is None:
            value = u - 0.5
        tensor.copy_(value.float())


def projection(tensor):
    """The inner product with a made-up vector of numbers in [-1, 1)."""
    flat = tensor.double().flatten()
    return torch.dot(flat, torch.from_numpy(made_up(7777, flat.numel())) * 2 - 1).item()


def write_numbers(file, name, numbers):
    file.write(name + "".join(" %.9g" % number for number in numbers) + "\n")


def write_values(file, arch, model, special, images, stride):
    """Of the model in float64. The label of image i is i * stride % outputs."""
    fill(model, special)
    with torch.no_grad():
        write_numbers(file, arch + " evaluation", model.eval()(images).flatten().tolist())
    outputs = model.train()(images)
    write_numbers(file, arch + " training", outputs.flatten().tolist())
    loss = torch.nn.functional.cross_entropy(outputs, torch.arange(outputs.shape[0]) * stride % outputs.shape[1])
    loss.backward()
    write_numbers(file, arch + " loss", [loss.item()])
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            write_numbers(file, arch + " gradient " + name, [parameter.grad.abs().sum().item(), projection(parameter.grad)])
    for name, buffer in model.named_buffers():
        write_numbers(file, arch + " buffer " + name, [buffer.double().sum().item(), projection(buffer)])
