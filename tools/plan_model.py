"""The parameters of a model, its convolutions, and the buckets that the engine makes of them; of shard-plan."""
BACKBONE, HEAD = "backbone", "head"
SIZES = {"float32": 4, "bfloat16": 2}
BLOCKS = {"resnet18": (False, [2, 2, 2, 2]), "resnet34": (False, [3, 4, 6, 3]), "resnet50": (True, [3, 4, 6, 3]),
          "resnet101": (True, [3, 4, 23, 3]), "resnet152": (True, [3, 8, 36, 3])}
ROW_BLOCK = 4096  # rows of a matrix that are communicated at once, at least
ALIGNMENT = 64  # bytes: parameters in a bucket begin at multiples


def divide_up(a, b):
    return -(-a // b)


def round_up(a, b):
    return divide_up(a, b) * b


# ---- models ----

class Parameter:
    """A parameter, or this rank's shard: its elements, and those of every shard but for the remainder."""

    def __init__(self, module, size, part=BACKBONE, even=None, rows=0, columns=0, dtype="float32"):
        self.module, self.size, self.part, self.even = module, int(size), part, int(even or size)
        self.rows, self.columns, self.dtype = rows, columns, dtype
        self.bucket = self.gradient = self.copy = self.values = None

    @property
    def bytes(self):
        return self.size * SIZES[self.dtype]


class Convolution:
    """And the batch norm after it, for one image: elements of input and result, and products."""

    def __init__(self, name, side, channels, out, kernel, stride, relu=True):
        self.side = (side + 2 * (kernel // 2) - kernel) // stride + 1
        self.inputs, self.outputs = side * side * channels, self.side * self.side * out
        self.relu, self.kernel, self.out = relu, kernel, out
        self.weight = Parameter(name + ".conv", out * channels * kernel * kernel)
        self.norm = [Parameter(name + ".bn", out), Parameter(name + ".bn", out)]
        self.products = self.outputs * channels * kernel * kernel

    @property
    def parameters(self):
        return [self.weight, *self.norm]


class ResNet:
    def __init__(self, arch, stem, side, wide=64):
        bottleneck, blocks = BLOCKS[arch]
        self.pixels, self.features, self.pool = side * side, 8 * wide * (4 if bottleneck else 1), 0
        self.stem = Convolution("", side, 3, wide, *((3, 1) if stem == "small" else (7, 2)))
        side = self.stem.side
        if stem == "imagenet":
            side = (side + 1) // 2
            self.pool = side * side * wide
        self.blocks, channels = [], wide
        for stage, count in enumerate(blocks):
            width = wide << stage
            out = width * (4 if bottleneck else 1)
            for i in range(count):
                stride = 2 if stage and i == 0 else 1
                name, first = f"layer{stage}.{i}", side
                if bottleneck:
                    way = [Convolution(name + ".1", side, channels, width, 1, 1), Convolution(name + ".2", side, width, width, 3, stride)]
                    way.append(Convolution(name + ".3", way[1].side, width, out, 1, 1))
                else:
                    way = [Convolution(name + ".1", side, channels, width, 3, stride)]
                    way.append(Convolution(name + ".2", way[0].side, width, width, 3, 1))
                side = way[-1].side
                down = Convolution(name + ".down", first, channels, out, 1, stride, relu=False) if stride > 1 or channels != out else None
                self.blocks.append((way, down))
                channels = out
        self.last = side * side * channels

    @property
    def convolutions(self):
        return [self.stem] + [one for way, down in self.blocks for one in way + ([down] if down else [])]

    @property
    def parameters(self):
        return [parameter for one in self.convolutions for parameter in one.parameters]

    @property
    def buffers(self):
        return [8 * one.out for one in self.convolutions] + [8] * len(self.convolutions)

    def operations(self, images):
        """Of forward and backward; the images get no gradient."""
        return images * (6 * sum(one.products for one in self.convolutions) - 2 * self.stem.products)


class AnyModel:
    """Layers of about equal size; what a layer's forward keeps is its input."""
    LAYERS = 16

    def __init__(self, parameters, activations, features):
        count, layers = int(parameters), min(int(parameters), self.LAYERS)
        self.parameters = [Parameter(f"layer{i}", count * (i + 1) // layers - count * i // layers) for i in range(layers)]
        self.kept, self.features, self.buffers = activations, features, []

    def operations(self, rows):
        return 6 * rows * sum(parameter.size for parameter in self.parameters)


# ---- buckets of the engine ----

class Bucket:
    def __init__(self, ranks, dtype, streamed, defers):
        self.ranks, self.dtype, self.parameters = ranks, dtype, []
        self.streamed, self.defers, self.alone = streamed, defers, streamed or defers
        self.gradient = self.values = self.local = None
        self.evictable, self.waiting = False, set()

    def lay_out(self, stage):
        size = SIZES[self.dtype]
        aligned = ALIGNMENT // size
        count = sum(round_up(parameter.size, aligned) for parameter in self.parameters)
        count = round_up(count, self.ranks * aligned) if stage else count
        self.bytes = count * size
        self.local_bytes = self.bytes // self.ranks if stage else self.bytes
        self.part = self.parameters[0].part

    @property
    def share(self):
        """The part of it that a rank updates."""
        return self.local_bytes / self.bytes


def is_streamed(parameter, plan):
    return plan.zero >= 2 and parameter.rows > 2 * ROW_BLOCK and parameter.even * SIZES[parameter.dtype] > plan.bucket_bytes


def make_buckets(parameters, ranks_of, plan):
    """From the last parameter to the first, as shard_buckets_add."""
    buckets, index = [], {id(parameter): i for i, parameter in enumerate(parameters)}
    for parameter in reversed(parameters):
        ranks, streamed, found = ranks_of(parameter), is_streamed(parameter, plan), None
        defers = plan.fused and plan.zero < 2 and parameter.part == HEAD
        if ranks == 1:
            continue
        alike = [bucket for bucket in buckets
                 if (bucket.ranks, bucket.dtype) == (ranks, parameter.dtype) and not (bucket.alone or streamed or defers)]
        if alike:
            last = alike[-1]
            filled = sum(one.even for one in last.parameters) * SIZES[last.dtype]
            ends = last.parameters[-1].module != parameter.module
            found = last if filled < plan.bucket_bytes * (1 if ends else 2) else None
        if not found:
            found = Bucket(ranks, parameter.dtype, streamed, defers)
            buckets.append(found)
        found.parameters.append(parameter)
        parameter.bucket = found
    for bucket in buckets:
        bucket.lay_out(plan.zero)
    last = lambda bucket: index[id(bucket.parameters[-1])] + (1.5 if bucket.alone and bucket.parameters[0].rows else 0)  # with its bias
    return sorted(buckets, key=last, reverse=True)
