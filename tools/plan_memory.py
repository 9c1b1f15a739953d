"""The memory of a training run, by going through a step's allocations in the order in which the library makes them; of shard-plan.

A block of memory has the library's kind (shard_memory_kind) and belongs to the backbone or to the head.
"""
import math

from plan_model import ALIGNMENT, BACKBONE, HEAD, ROW_BLOCK, SIZES, AnyModel, Parameter, divide_up, make_buckets, round_up

KINDS = ["parameters", "gradients", "optimizer state", "activations", "buckets", "workspace"]
PARAMETERS, GRADIENTS, STATE, ACTIVATIONS, BUCKETS, WORKSPACE = KINDS
# Numbers of state of each weight, and of each of its rows.
STATES = {"none": (0, 0), "momentum": (1, 0), "adamw": (2, 0), "rowwise-adagrad": (0, 1),
          "rowwise-adam": (1, 1)}
GPU_TILE = 32 << 20  # bytes of a tile's logits in sweeps that are not fused, about; a GPU has twice as many of a large weight
GPU_PART = 32 << 20  # bytes of a gradient that is passed to the optimizer, about
MOST_FUSED_ROWS = 1024  # rows of a batch for which the CPU has fused sweeps
STATISTICS = 5  # numbers of float64 that ranks exchange for each row
LOADED_AHEAD = 3  # batches of images in memory


class Memory:
    """Bytes in use by kind and part, and what they were when the sum was largest."""

    def __init__(self):
        self.now = {(kind, part): 0 for kind in KINDS for part in (BACKBONE, HEAD)}
        self.kind_now, self.kind_peak = dict.fromkeys(KINDS, 0), dict.fromkeys(KINDS, 0)
        self.sum = self.peak = 0
        self.at_peak = dict(self.now)

    def add(self, kind, part, count):
        self.now[kind, part] += count
        self.kind_now[kind] += count
        self.kind_peak[kind] = max(self.kind_peak[kind], self.kind_now[kind])
        self.sum += count
        if self.sum > self.peak:
            self.peak, self.at_peak = self.sum, dict(self.now)

    def scratch(self, part, count):
        """Memory of one operation, as its workspace."""
        self.add(WORKSPACE, part, count)
        self.add(WORKSPACE, part, -count)


class Block:
    """A block of memory with a number of references."""

    def __init__(self, memory, count, kind=ACTIVATIONS, part=BACKBONE):
        self.memory, self.count, self.kind, self.part, self.references = memory, int(count), kind, part, 1
        memory.add(kind, part, self.count)

    def hold(self):
        self.references += 1
        return self

    def release(self):
        self.references -= 1
        if self.references == 0:
            self.memory.add(self.kind, self.part, -self.count)

    def become(self, kind):
        self.memory.add(self.kind, self.part, -self.count)
        self.memory.add(kind, self.part, self.count)
        self.kind = kind


class Run:
    """Two steps of a plan: the first makes gradients and state, the second finds them."""

    def __init__(self, plan):
        self.plan, self.memory = plan, Memory()
        size, features, local = SIZES[plan.head_dtype], plan.model.features, plan.local_classes
        self.weight = Parameter("fc", local * features, HEAD, plan.even_classes * features, local, features, plan.head_dtype)
        self.bias = Parameter("fc", local, HEAD, plan.even_classes, dtype=plan.head_dtype)
        self.parameters = [*plan.model.parameters, self.weight, self.bias]
        self.buckets = make_buckets(self.parameters, lambda one: plan.ranks // plan.split if one.part == HEAD else plan.ranks, plan)
        self.element = 2 if plan.amp else 4  # of activations
        self.head_element = 2 if plan.amp or size == 2 else 4
        self.computed = math.ceil(local * plan.sample)  # classes of a step
        self.overlaps = plan.zero > 0
        self.copies, self.tape, self.source = [], [], []

    def block(self, count, kind=ACTIVATIONS, part=BACKBONE):
        return Block(self.memory, count, kind, part)

    def of_bucket(self, bucket, count, kind):
        """A block for each part that has parameters in the bucket."""
        sizes = {part: sum(one.size for one in bucket.parameters if one.part == part) for part in (BACKBONE, HEAD)}
        return [self.block(count * size / sum(sizes.values()), kind, part) for part, size in sizes.items() if size]

    # ---- parameters ----

    def setup(self):
        plan = self.plan
        for count in plan.model.buffers:
            self.block(round_up(count, ALIGNMENT) if plan.ranks > 1 else count, PARAMETERS)
        for bucket in self.buckets:
            if plan.zero < 3:
                self.of_bucket(bucket, bucket.bytes, PARAMETERS)
            elif bucket.streamed:
                self.of_bucket(bucket, bucket.local_bytes, PARAMETERS)
            else:
                whole = self.of_bucket(bucket, bucket.bytes, PARAMETERS)
                self.of_bucket(bucket, bucket.local_bytes, PARAMETERS)
                release(whole)
            if plan.zero < 2 and not bucket.defers:
                bucket.gradient = self.of_bucket(bucket, bucket.bytes, GRADIENTS)
        for parameter in self.parameters:  # the others have memory when they are needed
            if not parameter.bucket:
                self.block(parameter.bytes, PARAMETERS, parameter.part)
        self.block(LOADED_AHEAD * plan.loaded_bytes)

    def need(self, parameter):
        """Gathers the bucket of partitioned values; others that are idle are evicted first."""
        bucket = parameter.bucket
        if not bucket or self.plan.zero < 3 or bucket.streamed:
            return
        if not bucket.values:
            self.evict_idle()
            bucket.values = self.of_bucket(bucket, bucket.bytes, BUCKETS)
        bucket.evictable = False

    def evict_idle(self):
        for bucket in self.buckets:
            if bucket.values and bucket.evictable:
                bucket.values = release(bucket.values)

    def rest(self, *parameters):
        for parameter in parameters:
            if parameter.bucket:
                parameter.bucket.evictable = True

    def narrow_copy(self, parameter):
        """Of mixed precision: kept until the forward ends, unless values come and go. None without."""
        if not self.plan.amp or parameter.dtype != "float32":
            return None
        copy = self.block(2 * parameter.size, ACTIVATIONS, parameter.part)
        if not (parameter.bucket and self.plan.zero == 3):
            self.copies.append(copy.hold())
        return copy

    # ---- gradients ----

    def gradient(self, parameter):
        """Memory for it; a block that becomes the gradient where there was none."""
        bucket = parameter.bucket
        if bucket and not bucket.gradient:
            bucket.gradient = self.of_bucket(bucket, bucket.bytes, GRADIENTS if bucket.defers else BUCKETS)
        if bucket or parameter.gradient:
            return
        parameter.gradient = self.block(parameter.bytes * (self.plan.sample if parameter.rows else 1), ACTIVATIONS, parameter.part)

    def done(self, *parameters):
        """The gradients are complete: full buckets are reduced, in their order."""
        for parameter in parameters:
            if parameter.gradient:
                parameter.gradient.become(GRADIENTS)
            if parameter.bucket:
                parameter.bucket.waiting.discard(parameter)
        if not self.last and self.plan.zero < 2:
            return
        while self.reduced < len(self.buckets) and not self.buckets[self.reduced].waiting:
            self.reduce(self.buckets[self.reduced])
            self.reduced += 1

    def reduce(self, bucket):
        if bucket.values:
            bucket.values = release(bucket.values)
        if self.plan.zero >= 2 and not bucket.local:
            bucket.local = self.of_bucket(bucket, bucket.local_bytes, GRADIENTS)
        if self.plan.zero >= 2 and bucket.gradient:
            bucket.gradient = release(bucket.gradient)
        if self.overlaps and self.last and not (bucket.defers and self.gathers):
            self.make_state(bucket.parameters, bucket.share)

    def make_state(self, parameters, share=1):
        for parameter in parameters:
            if parameter in self.stated:
                continue
            self.stated.add(parameter)
            kept, size = (self.plan.head_state, SIZES[self.plan.state_dtype]) if parameter.part == HEAD else (self.plan.optimizer, 4)
            numbers, of_rows = STATES[kept]
            rows = parameter.rows or parameter.size  # a number of a vector is a row
            count = numbers * size * parameter.size + 4 * of_rows * rows
            if parameter.dtype == "bfloat16" and self.plan.kahan:
                count += 2 * parameter.size
            if count:
                self.block(count * share, STATE, parameter.part)

    # ---- convolutions ----

    def scratch_of(self, convolution, of_gradient=False):
        """The CPU's copy of the weight in another order; of a gradient in 16 bits one of float32, too."""
        if convolution.kernel > 1:
            self.memory.scratch(BACKBONE, (6 if self.plan.amp and of_gradient else 4) * convolution.weight.size)

    def convolve(self, convolution, x):
        """Convolution and batch norm of x, which stays the caller's."""
        images, norm = self.plan.images, convolution.norm
        self.need(convolution.weight)
        copy = self.narrow_copy(convolution.weight)
        y = self.block(images * convolution.outputs * self.element)
        self.scratch_of(convolution)
        stem = convolution is self.plan.model.stem
        keeps_copy = copy and not stem and not (convolution.weight.bucket and self.plan.zero == 3)
        if copy and not keeps_copy:
            copy.release()
        self.rest(convolution.weight)
        self.need(norm[0])
        z, statistics = self.block(images * convolution.outputs * self.element), self.block(16 * convolution.out)
        self.rest(*norm)
        saved = [y, statistics] + ([z.hold()] if convolution.relu else [])
        return z, {"of": convolution, "x": x.hold(), "copy": copy if keeps_copy else None, "saved": saved}

    def norm_back(self, record):
        """In place: the gradient of the convolution's result is where that of the norm's was."""
        for parameter in record["of"].norm:
            self.gradient(parameter)
        release(record["saved"])
        self.done(*record["of"].norm)

    def convolve_back(self, record, g):
        """Takes over g; the gradient of x, or None for images."""
        convolution, plan = record["of"], self.plan
        weight, stem = convolution.weight, convolution is self.plan.model.stem
        passing = [self.block(2 * weight.size)] if plan.amp else []
        if self.adds and not (weight.bucket and plan.zero >= 2):
            passing.append(self.block(weight.bytes))  # it is added to that of earlier micro-batches
        self.scratch_of(convolution, True)
        self.gradient(weight)
        dx = None
        if not stem:
            self.need(weight)
            if plan.amp and weight.bucket and plan.zero == 3:
                passing.append(self.block(2 * weight.size))
            dx = self.block(plan.images * convolution.inputs * self.element)
            self.scratch_of(convolution)
        release(passing + [record["x"], g] + ([record["copy"]] if record["copy"] else []))
        self.done(weight)
        return dx

    def block_forward(self, way, down, x):
        records, z, residual = [], x, None
        for i, convolution in enumerate(way):
            if i == len(way) - 1 and down:
                residual, beside = self.convolve(down, x)
            y, record = self.convolve(convolution, z)
            records.append(record)
            if z is not x:
                z.release()
            z = y
        if residual:
            residual.release()
        self.tape.append((records, beside if residual else None))
        return z

    def block_backward(self, records, beside, g):
        plan, last = self.plan, records[-1]
        aside = self.block(plan.images * last["of"].outputs * self.element)  # the residual's gradient
        self.norm_back(last)
        g = self.convolve_back(last, g)
        if beside:
            self.norm_back(beside)
            aside = self.convolve_back(beside, aside)
        for record in reversed(records[:-1]):
            self.norm_back(record)
            g = self.convolve_back(record, g)
        g.release()  # added to the other
        return aside

    # ---- the backbone ----

    def features_forward(self):
        plan, model, images = self.plan, self.plan.model, self.plan.images
        if isinstance(model, AnyModel):
            self.tape = [self.block(images * model.kept / model.LAYERS) for _ in range(model.LAYERS)]
            for i, parameter in enumerate(model.parameters):
                self.need(parameter)
                copy = self.narrow_copy(parameter)
                if copy and parameter.bucket and plan.zero == 3:  # made again for the backward
                    copy.release()
                    copy = None
                self.tape.insert(2 * i + 1, copy or self.block(0))
                self.rest(parameter)
            return self.block(images * model.features * self.head_element)
        self.images = [self.block(12 * images * model.pixels)]
        x = self.images[0]
        if plan.amp:
            x = self.block(6 * images * model.pixels)
        z, record = self.convolve(model.stem, x)
        if plan.amp:
            x.release()
        self.tape = [record]
        if model.pool:
            pooled, argmax = self.block(images * model.pool * self.element), self.block(4 * images * model.pool)
            z.release()
            z = pooled
            self.tape.append(argmax)
        for way, down in model.blocks:
            y = self.block_forward(way, down, z)
            z.release()
            z = y
        features = self.block(images * model.features * self.head_element)
        z.release()
        return features

    def features_backward(self, g):
        """Takes over g, the gradient of the features."""
        plan, model, images = self.plan, self.plan.model, self.plan.images
        if isinstance(model, AnyModel):
            g.release()
            g = self.block(images * model.kept / model.LAYERS)
            for parameter in reversed(model.parameters):
                self.gradient(parameter)
                self.need(parameter)
                again = self.narrow_copy(parameter) if parameter.bucket and plan.zero == 3 else None
                following = self.block(images * model.kept / model.LAYERS)
                g.release()
                g = following
                release([self.tape.pop(), self.tape.pop()] + ([again] if again else []))
                self.done(parameter)
            release([g] + self.tape)
            return
        pooled = self.block(images * model.last * self.element)
        g.release()
        g = pooled
        while isinstance(self.tape[-1], tuple):
            g = self.block_backward(*self.tape.pop(), g)
        if model.pool:
            wide = self.block(images * model.stem.outputs * self.element)
            release([g, self.tape.pop()])
            g = wide
        record = self.tape.pop()
        self.norm_back(record)
        self.convolve_back(record, g)
        release(self.images)

    # ---- the head ----

    def row_block(self):
        """Bytes of the rows of a streamed weight that are in memory at a time, at most."""
        row = self.weight.columns * SIZES[self.weight.dtype]
        rows = ROW_BLOCK * max(1, self.plan.bucket_bytes // (ROW_BLOCK * row))
        blocks = max(1, self.weight.rows // rows)
        return (self.weight.rows - (blocks - 1) * rows) * row

    @property
    def streamed(self):
        return bool(self.weight.bucket and self.weight.bucket.streamed)

    @property
    def fused(self):
        """Whether the head has no logits in memory: a classifier, unless the values of its weight come in row blocks."""
        return self.plan.fused and not (self.streamed and self.plan.zero == 3)

    @property
    def row_bytes(self):
        """Of a row of the batch that a deferred gradient is computed from."""
        return self.plan.model.features * self.head_element + 32

    @property
    def gathered_rows(self):
        return self.weight.bucket.ranks * self.plan.accumulate * self.plan.rows

    @property
    def gathers(self):
        """Whether replicas gather their rows: of all classes, or of one sample of them, which the replicas share."""
        bucket = self.weight.bucket
        return bool(bucket and bucket.defers and self.gathered_rows * self.row_bytes <= self.weight.bytes)

    @property
    def deferred(self):
        return self.plan.fused and (not self.weight.bucket or self.gathers)

    def stream_values(self):
        if self.plan.amp:
            cast = self.block(self.row_block() // 2, WORKSPACE, HEAD)
        if self.plan.zero == 3:
            self.evict_idle()
            self.block(self.row_block(), BUCKETS, HEAD).release()
        if self.plan.amp:
            cast.release()

    def plain_forward(self, features):
        plan = self.plan
        self.need(self.weight)
        self.need(self.bias)
        copies = []
        if self.streamed and plan.zero == 3:
            self.stream_values()
        else:
            copies = [self.narrow_copy(self.weight)]
        copies.append(self.narrow_copy(self.bias))
        logits = self.block(plan.rows * self.computed * self.head_element, ACTIVATIONS, HEAD)
        partitioned = self.weight.bucket and plan.zero == 3
        keeps = copies[:1] if not partitioned else []
        release([copy for copy in copies if copy and copy not in keeps])
        self.rest(self.weight, self.bias)
        return {"x": features.hold(), "logits": logits, "copies": [copy for copy in keeps if copy]}

    def plain_backward(self, record):
        plan, cast = self.plan, []
        self.gradient(self.bias)
        if self.streamed:
            self.block(self.row_block(), BUCKETS, HEAD).release()
            if not self.weight.bucket.local:
                self.weight.bucket.local = self.of_bucket(self.weight.bucket, self.weight.bucket.local_bytes, GRADIENTS)
        else:
            self.gradient(self.weight)
        if self.streamed and plan.zero == 3:
            self.stream_values()
        elif plan.amp and self.weight.dtype == "float32" and not record["copies"]:
            cast = [self.block(2 * self.weight.size, ACTIVATIONS, HEAD)]
        self.need(self.weight)
        dx = self.block(plan.rows * plan.model.features * self.head_element)
        release(cast + [record["x"], record["logits"]] + record["copies"])
        return dx

    def gpu_tile(self, rows):
        """Classes of a tile in sweeps that are not fused."""
        features, weight = self.plan.model.features, self.computed * self.plan.model.features * SIZES[self.weight.dtype]
        most = max(min(weight // 16, 2 * GPU_TILE), GPU_TILE) if self.plan.gpu else GPU_TILE
        classes = max(most // (4 * max(rows, 1, features // 2)) // 256 * 256, 256)
        return min(round_up(divide_up(self.computed, divide_up(self.computed, classes)), 256), self.computed)

    def lane_bytes(self, backward, rows=None):
        """The workspace of a sweep: of the CPU's on one thread."""
        rows, features = rows or self.plan.rows, self.plan.model.features
        if self.plan.gpu or rows > MOST_FUSED_ROWS:
            tile = self.gpu_tile(rows)
            part = min(tile, max(GPU_PART // (4 * features) // 256 * 256, 256))
            gradient = 4 * part * features * backward
            if self.head_element == 4:
                return 4 * tile * rows * (2 if self.plan.gpu and not backward else 1) + gradient
            # Of 16 bits the gradient is where the logits were.
            return max(4 * tile * rows, gradient) + tile * (2 * rows + (2 * features if self.weight.dtype == "float32" else 0))
        pitch, wide = round_up(rows, 16), round_up(features, 16)
        tile = min(max(384 * 1024 // (4 * wide) // 24 * 24, 48), 768)
        shared = 4 * (pitch * features + wide * rows) + (4 * rows * features if self.head_element == 2 else 0)
        own = 4 * tile * pitch + (4 * tile * wide if self.weight.dtype != "float32" else 0)
        own += 4 * 24 * wide if backward else 4 * (tile * 64 + rows * wide)
        return shared + own

    def stash_bytes(self):
        rows, features = self.plan.rows, self.plan.model.features
        unused = self.plan.sample < 1 or (self.weight.bucket and self.weight.bucket.defers)
        if unused or (rows > MOST_FUSED_ROWS and not self.plan.gpu) or (self.plan.gpu and self.head_element == 4):
            return 0
        most = int(min(self.plan.head_stash * self.weight.bytes, 2 ** 63))
        if self.plan.gpu:
            tile = self.gpu_tile(rows)
            place = round_up(2 * rows * tile, 256) + round_up(4 * rows, 256)
            return min(divide_up(self.computed, tile), most // place) * place
        pitch, wide, size = round_up(rows, 16), round_up(features, 16), self.head_element
        tile = min(max(384 * 1024 // (size * wide) // 24 * 24, 48), 768)
        place = pitch * (2 * tile + 8)
        return min(divide_up(self.computed, tile), most // place) * place

    def fused_forward(self, features):
        plan = self.plan
        self.need(self.weight)
        stash = self.block(0 if self.source else self.stash_bytes(), WORKSPACE, HEAD)  # of a gradient of one micro-batch
        sums = self.block(plan.rows * (8 * STATISTICS + 4 * plan.model.features), WORKSPACE, HEAD)
        self.memory.scratch(HEAD, self.lane_bytes(False))
        for kept in (stash, sums):
            kept.become(ACTIVATIONS)
        self.rest(self.weight, self.bias)
        return {"x": features.hold(), "stash": stash, "sums": sums}

    def fused_backward(self, record):
        plan = self.plan
        dx = self.block(plan.rows * plan.model.features * self.head_element)
        if not self.deferred:
            self.need(self.weight)
            self.gradient(self.weight)
            self.gradient(self.bias)
            self.memory.scratch(HEAD, self.lane_bytes(True))
            record["stash"].release()
        else:
            rows = self.block(plan.rows * self.row_bytes, GRADIENTS, HEAD)
            if self.source:
                release([record["stash"], self.source.pop()])  # that of the first micro-batch
            self.source += [rows] if self.adds else [rows, record["stash"]]
            if self.gathers and self.last:
                gathered = self.block(self.gathered_rows * self.row_bytes, GRADIENTS, HEAD)
                release(self.source)
                self.source = [gathered]
        release([record["x"], record["sums"]])
        return dx

    # ---- a step ----

    def micro_batch(self):
        plan = self.plan
        for bucket in self.buckets:
            bucket.waiting = set(bucket.parameters)
        self.reduced = 0
        own = self.features_forward()
        features = own
        if plan.split > 1:
            features = self.block(plan.rows * plan.model.features * self.head_element)
        record = (self.fused_forward if self.fused else self.plain_forward)(features)
        release([features, own] if plan.split > 1 else [features])
        self.copies = release(self.copies)
        g = (self.fused_backward if self.fused else self.plain_backward)(record)
        if not self.source or self.gathers:
            self.done(self.weight, self.bias)
        if plan.split > 1:
            of_images = self.block(plan.images * plan.model.features * self.head_element)
            g.release()
            g = of_images
        self.features_backward(g)

    def step(self):
        micro_batches = min(self.plan.accumulate, 2)
        for i in range(micro_batches):
            self.adds, self.last = i > 0, i + 1 == micro_batches
            self.micro_batch()
        self.make_state([one for one in self.parameters if not one.bucket or not self.overlaps])
        if self.source and self.gathers:
            self.make_state([self.weight, self.bias], self.weight.bucket.share)
        if self.source:
            bias = self.block(self.bias.bytes, GRADIENTS, HEAD)
            self.memory.scratch(HEAD, self.lane_bytes(True, self.gathers and self.gathered_rows))
            self.source = release([bias, *self.source])

    def run(self):
        self.stated = set()
        self.setup()
        for _ in range(2):
            self.step()
        return self.memory


def release(blocks):
    """Releases a reference to each; an empty list."""
    for block in blocks:
        block.release()
    return []
