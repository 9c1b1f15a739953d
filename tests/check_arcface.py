"""check_arcface.py SHARDRUN ARCFACE: training on one rank and on several, image folders and RecordIO, pairs of .bin files, sampled
classes, resuming on another number of ranks, hold-out, and errors."""
import json
import os
import pathlib
import pickle
import random
import re
import shutil
import struct
import sys
import tempfile
import zlib

from support import trainers
from support.checkpoints import change_checkpoint
from support.trainers import Trainer, check, report, run_script

SHARDRUN, ARCFACE = sys.argv[1:]
PROJECT = pathlib.Path(__file__).resolve().parent.parent / "projects/arcface"
RUN = ("--network r18 --width 4 --embedding-size 16 --image-size 16 --no-flip -b 24 --epochs 4 --lr 0.05 --warmup-epochs 0.5 "
       "--margin arcface:0.2 --margin-scale 16 --impostors 2000 --seed 5 -j 0 --sync-bn").split()
TOLERANCE = 1e-3  # of the first losses on several ranks: float32 sums in another order, which later steps enlarge
FIRST = 6
IDENTITIES, OTHERS, OF_EACH, SIDE = 20, 8, 6, 16
TRAINER = Trainer(SHARDRUN, ARCFACE)


def tool(name, *arguments):
    return run_script(PROJECT / name, *arguments)


def train(folder, *options, data="data", ranks=1, expect=None, without=()):
    """without: options of RUN."""
    base = (option for option in RUN if option not in without)
    return TRAINER.train(folder / "metrics.json", *base, *options, folder / data, ranks=ranks, expect=expect)


def compare(what, found, expected, tolerance=TOLERANCE):
    trainers.compare(what, found, expected, tolerance)


def losses(lines):
    return [line["loss"] for line in lines if not line.get("validation")]


# ---- data ----

def picture(identity, number, mirrored=False, border=0):
    """A PNG of coarse squares that are the identity's, with noise and a shift that are the image's. border: white columns left and
    right of it."""
    of_identity, of_image = random.Random(identity), random.Random(1000 * identity + number)
    squares = [[[of_identity.randrange(40, 216) for _ in range(3)] for _ in range(4)] for _ in range(4)]
    shift = of_image.randrange(3)
    rows = b""
    for y in range(SIDE):
        pixels = []
        for x in range(SIDE):
            square = squares[min(y + shift, SIDE - 1) // 4][x // 4]
            pixels.append(bytes(max(0, min(255, level + of_image.randrange(-30, 31))) for level in square))
        white = b"\xff" * (3 * border)
        rows += b"\0" + white + b"".join(reversed(pixels) if mirrored else pixels) + white

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", SIDE + 2 * border, SIDE, 8, 2, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def write_folder(folder, identities, count=OF_EACH, mirrored=False, border=0):
    for identity in identities:
        (folder / f"{identity:04d}").mkdir(parents=True)
        for number in range(count):
            (folder / f"{identity:04d}/{number}.png").write_bytes(picture(identity, number, mirrored, border))


def write_records(folder):
    """The images of train/ in their order, as insightface's train.rec: record 0, the images, and a record for each identity."""
    folder.mkdir()
    images = [(identity, picture(identity, number)) for identity in range(IDENTITIES) for number in range(OF_EACH)]
    contents = [struct.pack("<IfQQff", 2, 0, 0, 0, len(images) + 1, len(images) + 1 + IDENTITIES)]
    for i, (identity, image) in enumerate(images):
        contents.append((struct.pack("<IfQQff", 2, 0, i, 0, identity, 0) if i % 2 else struct.pack("<IfQQ", 0, identity, i, 0)) + image)
    contents += [struct.pack("<IfQQff", 2, 0, 0, 0, 1 + i * OF_EACH, 1 + (i + 1) * OF_EACH) for i in range(IDENTITIES)]
    index, position = "", 0
    with open(folder / "train.rec", "wb") as file:
        for key, content in enumerate(contents):
            index += f"{key}\t{position}\n"
            record = struct.pack("<II", 0xced7230a, len(content)) + content + b"\0" * (-len(content) % 4)
            file.write(record)
            position += len(record)
    (folder / "train.idx").write_text(index)


def write_pairs(path, count=40):
    images, same = [], []
    for i in range(count):
        identity = 100 + i % OTHERS
        images += [picture(identity, i % OF_EACH), picture(identity + (i % 2) * (1 if i % OTHERS < OTHERS - 1 else -1), (i + 1) % OF_EACH)]
        same.append(i % 2 == 0)
    path.write_bytes(pickle.dumps((images, same), protocol=3))


def make_data(folder):
    write_folder(folder / "data/train", range(IDENTITIES))
    write_folder(folder / "data/val", range(100, 100 + OTHERS))
    write_records(folder / "records")
    write_pairs(folder / "records/lfw.bin")


# ---- runs ----

def read_rows(path, name):
    content = path.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    entry = json.loads(content[8:8 + size])[name]
    begin, end = entry["data_offsets"]
    return entry["shape"], content[8 + size + begin:8 + size + end]


def write_rows(path, entries, rows):
    """A file without checksums."""
    header = json.dumps(entries).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + rows)


def check_ranks(folder, one):
    check(len(one) == 24, f"one rank: {len(one)} lines")  # 5 steps an epoch, and a validation
    first, last = losses(one)[0], losses(one)[-1]
    check(last < 0.75 * first, f"the loss goes from {first} to {last}")
    result = one[-1]
    check(result["val_accuracy"] > 75 and result["val_rank5"] > result["val_rank1"] > 40, f"validation: {result}")
    check(result["val_tar_far_1e3"] is not None and result["val_tar_far_1e4"] is None, f"2000 pairs have a FAR of 1e-3: {result}")
    for ranks, options in ((2, ["--enable-model-parallel"]), (2, []), (4, ["--enable-model-parallel", "--model-parallel-size", 2])):
        lines = train(folder, *options, ranks=ranks)
        compare(f"{ranks} ranks {options}", losses(lines)[:FIRST], losses(one)[:FIRST])
        compare(f"accuracy of {ranks} ranks {options}", [lines[-1]["val_accuracy"]], [result["val_accuracy"]], 0.15)
    # Clipping hides the scale of a gradient.
    plain = ["--clip-grad", 0, "--lr", 0.005, "--steps", FIRST, "--val-interval", 0, "--dropout", 0.2]
    one = losses(train(folder, *plain))
    compare("two ranks without clipping, with dropout", losses(train(folder, *plain, ranks=2)), one)


def check_augmentation(folder, one):
    short = ["--steps", FIRST, "--val-interval", 0]
    plain = losses(train(folder, *short))
    compare("the first steps", plain, losses(one)[:FIRST], 0)
    for options, without in ((["--shift", 0.2], ()), ([], ("--no-flip",))):
        other = losses(train(folder, *short, *options, without=without))
        check(other != plain, f"{options or without} changes nothing")


def check_records(folder, one):
    """The same images in the same order: the same losses; and pairs of a file."""
    lines = train(folder, "--val-targets", "lfw", data="records")
    compare("RecordIO", losses(lines), losses(one), 0)
    check(lines[-1]["lfw_accuracy"] > 70 and lines[-1]["lfw_tar_far_1e3"] is None, f"pairs: {lines[-1]}")
    train(folder, "--val-targets", "lfw,cfp_fp", data="records", expect="cfp_fp.bin: No such file")
    (folder / "records/bad.bin").write_bytes(pickle.dumps(([os.system], [True]), protocol=2))
    train(folder, "--val-targets", "bad", data="records", expect="calls a function, or names an object")
    content = bytearray((folder / "records/train.rec").read_bytes())
    positions = [int(line.split()[1]) for line in (folder / "records/train.idx").read_text().splitlines()]
    for at, text in ((positions[4] - 90, f"train.rec: record 3 at byte {positions[3]}: "),
                     (positions[7], f"train.rec: byte {positions[7]}: a record begins with the word")):
        damaged = content.copy()
        damaged[at] ^= 255
        (folder / "records/train.rec").write_bytes(damaged)
        train(folder, data="records", expect=text)


def check_losses(folder):
    for options in (["--margin", "none"], ["--margin", "cosface:0.2"], ["--margin", "cosine", "--sample-rate", "0.3"],
                    ["--margin", "none", "--sample-rate", "0.3", "--sample-correction"],
                    ["--sample-rate", "0.3", "--head-dtype", "bfloat16", "--head-optimizer", "sgd"]):
        one = train(folder, *options)
        check(losses(one)[-1] < losses(one)[0], f"{options}: {losses(one)}")
        if "bfloat16" not in options:
            compare(f"two ranks {options}", losses(train(folder, "--enable-model-parallel", *options, ranks=2))[:FIRST],
                    losses(one)[:FIRST])


def check_norms(folder):
    """With a margin, the norms of the classifier's rows do not count: rows that are times 1 to 20 give the same losses."""
    keep = ["--lr", 0, "--steps", 2, "--val-interval", 0]
    train(folder, *keep, "--output", folder / "norms")
    shape, rows = read_rows(folder / "norms/model.safetensors", "classifier.weight")
    values = struct.unpack(f"<{len(rows) // 4}f", rows)
    rows = struct.pack(f"<{len(values)}f", *(value * (1 + i // shape[1]) for i, value in enumerate(values)))
    entry = {"classifier.weight": {"dtype": "F32", "shape": shape, "data_offsets": [0, len(rows)]}}
    write_rows(folder / "longer.safetensors", entry, rows)
    for options in (["--margin", "arcface:0.2"], ["--margin", "cosine", "--sample-rate", 0.3], ["--margin", "none"]):
        one, longer = (losses(train(folder, *keep, *options, *pretrained)) for pretrained in
                       ([], ["--pretrained", folder / "longer.safetensors"]))
        if "none" in options:
            check(longer[0] - one[0] > 0.1, f"without a margin, norms count: {longer}, {one}")
        else:
            compare(f"{options} with longer rows", longer, one, 1e-5)


def check_adaface(folder):
    """Its margins follow the norms of all ranks' features, whose statistics are in the checkpoint."""
    adaface = ["--margin", "adaface:0.4,0.333", "--val-interval", 0]
    one, two = (train(folder, *adaface, "--steps", FIRST, "--output", folder / f"adaface-{ranks}", ranks=ranks) for ranks in (1, 2))
    compare("AdaFace on two ranks", losses(two), losses(one))
    for name, first, least in (("batch_mean", 20, 0.5), ("batch_std", 100, 2)):
        found = [struct.unpack("<f", read_rows(folder / f"adaface-{ranks}/checkpoint.safetensors", f"margin.{name}")[1])[0]
                 for ranks in (1, 2)]
        check(first - found[0] > least, f"{name} follows the features: {found}")
        compare(f"{name} of two ranks", found[1:], found[:1], 1e-5)
    rest = train(folder, *adaface, "--steps", FIRST + 2, "--resume", folder / "adaface-1/checkpoint.safetensors")
    compare("AdaFace, resumed", losses(rest), losses(train(folder, *adaface, "--steps", FIRST + 2))[FIRST:], 0)
    for h, other in ((0, "cosface:0.4"), (1e9, "arcface:0.4")):  # norms count for nothing; all are far below their mean
        found, expected = (losses(train(folder, "--steps", FIRST, "--val-interval", 0, "--margin", margin))
                           for margin in (f"adaface:0.4,{h}", other))
        compare(f"AdaFace with h {h} and {other}", found, expected, 1e-5)
    shape, rows = read_rows(folder / "adaface-1/checkpoint.safetensors", "classifier.weight")
    for there, lacking in (("batch_mean", "batch_std"), ("batch_std", "batch_mean")):
        statistic = struct.pack("<f", 20)
        entries = {"classifier.weight": {"dtype": "F32", "shape": shape, "data_offsets": [0, len(rows)]},
                   f"margin.{there}": {"dtype": "F32", "shape": [1], "data_offsets": [len(rows), len(rows) + 4]}}
        write_rows(folder / f"{there}.safetensors", entries, rows + statistic)
        train(folder, *adaface, "--pretrained", folder / f"{there}.safetensors", expect=f'1 missing there ("margin.{lacking}")')


def check_mirrored(folder):
    """Features are those of an image and of its mirror image: of mirrored images they are the same. With --no-flip they are not."""
    write_folder(folder / "mirrored/val", range(100, 100 + OTHERS), mirrored=True)
    evaluate = ["-e", "--pretrained", folder / "norms/model.safetensors"]
    for without in (("--no-flip",), ()):
        images, mirrored = ([line[f"val_{name}"] for name in ("accuracy", "deviation", "tar_far_1e3", "rank1", "rank5")] for line in
                            (train(folder, *evaluate, data=data, without=without)[0] for data in ("data", "mirrored")))
        check((images == mirrored) == bool(without), f"without {without}: {images} and, mirrored, {mirrored}")


def check_wide(folder, one):
    """Of images that are wider than high the largest square in the middle is taken, in training and in validation."""
    write_folder(folder / "wide/train", range(IDENTITIES), border=3)
    write_folder(folder / "wide/val", range(100, 100 + OTHERS), border=3)
    found = train(folder, data="wide")
    compare("wide images", losses(found), losses(one), 0)
    compare("accuracy of wide images", [found[-1]["val_accuracy"]], [one[-1]["val_accuracy"]], 0)


def check_resume(folder, one):
    out = folder / "out"
    saved = ["--output", out, "--keep", 2, "--save-every", 3]
    compare("the first part", losses(train(folder, *saved, "--steps", 8)), losses(one)[:8], 0)
    rest = train(folder, *saved, "--resume", "auto", "--enable-model-parallel", ranks=2)
    check(rest[0]["step"] == 9, f"goes on with step {rest[0]['step']}")
    compare("the rest on two ranks", losses(rest)[:FIRST], losses(one)[8:8 + FIRST], 5e-3)
    best = max(line["val_accuracy"] for line in rest if line.get("validation"))
    again = train(folder, "-e", "--resume", out / "best.safetensors")
    compare("-e", [again[0]["val_accuracy"]], [best], 1e-6)
    other = train(folder, "-e", "--pretrained", out / "model.safetensors", ranks=2)
    compare("-e of the model alone, on two ranks", [other[0]["val_accuracy"], other[0]["val_rank1"]],
            [again[0]["val_accuracy"], again[0]["val_rank1"]], 1e-6)
    newest = max(out.glob("step-*/checkpoint.safetensors"))
    train(folder, "-e", "--resume", newest, without=("--no-flip",), expect="its flip is no, not yes; start with the run's own --no-flip")
    flipped = [option for option in RUN if option != "--no-flip"]
    said = TRAINER.run(*flipped, "-e", "--pretrained", out / "model.safetensors", folder / "data")
    check("model.safetensors: its flip is no, this run's is yes (--no-flip)" in said.stdout, said)
    for option, text in ((["--width", 8], "its width is 4, not 8"), (["--margin", "cosface:0.2"], "its margin is combined:1,0.2,0")):
        train(folder, *option, "--resume", newest, expect=text)
    # Other identities, as many: their rows of the classifier would be those of these. More images of the same ones are another epoch.
    write_folder(folder / "others/train", range(200, 200 + IDENTITIES))
    (folder / "others/val").symlink_to(folder / "data/val")
    train(folder, "--epochs", 5, "--resume", newest, data="others", expect="its identities_hash is ")
    again = train(folder, "-e", "--resume", out / "best.safetensors", data="others")
    compare("-e beside other identities", [again[0]["val_accuracy"]], [best], 1e-6)
    write_folder(folder / "more/train", range(IDENTITIES), OF_EACH + 1)
    check(len(losses(train(folder, "--epochs", 5, "--resume", newest, data="more"))) == 5, "more images of the same identities")
    old = folder / "old.safetensors"
    shutil.copy(newest, old)
    change_checkpoint(old, {"identities_hash": None}) # a file of an older program
    check(len(losses(train(folder, "--epochs", 5, "--resume", old, data="others"))) == 5, "a file without the hash")
    write_folder(folder / "fewer/train", range(IDENTITIES - 1))
    train(folder, "--pretrained", out / "model.safetensors", data="fewer", expect="its classifier has 20 identities, the training set 19")


def check_rest(folder):
    """49 images for validation and batches of 12 of each of two ranks: the first has 25 of them, three batches, of which the second
    has less. 121 for training are 5 batches; the image that is left over would leave a rank's batch norm without statistics."""
    write_folder(folder / "rest/train", range(IDENTITIES))
    (folder / "rest/train/0000/more.png").write_bytes(picture(0, 9))
    write_folder(folder / "rest/val", range(100, 107), 7)
    for options in ([], ["--enable-zero-optim", 3, "--bucket-mib", "0.01"]):
        lines = train(folder, "--epochs", 1, *options, data="rest", ranks=2, without=("--sync-bn",))
        check(len(lines) == 6 and {line["images"] for line in lines[:5]} == {24} and lines[-1]["images"] == 49, f"{options}: {lines}")
    done = TRAINER.run(*RUN, "--epochs", 1, folder / "rest", ranks=2)
    check(done.returncode == 0 and re.search(r"^val \[3/3\]", done.stdout, re.MULTILINE), f"batches of validation: {done}")
    train(folder, "-b", 122, data="rest", expect="121 training images are less than a --batch-size of 122")


def check_hold_out(folder):
    write_folder(folder / "glyphs/train", range(30), 2)
    for identity in range(30):
        (folder / f"glyphs/val/{identity:04d}").mkdir(parents=True)
        (folder / f"glyphs/val/{identity:04d}/other.png").write_bytes(picture(identity, 7))
    done = tool("hold-out", "--train", 20, "--held-out", 6, folder / "glyphs", folder / "held")
    check(done.returncode == 0 and done.stdout == "20 characters, 40 images for training; 6 others, 18 images\n", f"{done}")
    names = {split: {path.name for path in (folder / "held" / split).iterdir()} for split in ("train", "val")}
    check(len(names["train"]) == 20 and len(names["val"]) == 6 and not names["train"] & names["val"], f"{names}")
    lines = train(folder, "--epochs", 1, data="held")
    check(len(lines) == 2 and lines[-1]["images"] == 18, f"{lines}")
    for split, text in (("val", "val has no 0000, and lacks 1 of 6 characters"), ("", "val has no 0000, and lacks 6 of 6 characters")):
        (folder / "fewer-glyphs" / split).mkdir(parents=True)
        (folder / "fewer-glyphs/train").symlink_to(folder / "glyphs/train")
        for path in (folder / "glyphs/val").iterdir() if split else ():
            if path.name != "0000":
                (folder / "fewer-glyphs/val" / path.name).symlink_to(path)
        done = tool("hold-out", "--train", 20, "--held-out", 6, folder / "fewer-glyphs", folder / "none")
        check(done.returncode == 1 and text in done.stderr and not (folder / "none").exists(), f"{split}: {done}")
        shutil.rmtree(folder / "fewer-glyphs")
    done = tool("hold-out", folder / "data/val", folder / "none")
    check(done.returncode == 1 and "there is no folder" in done.stderr and done.stderr.count("\n") == 1, f"{done}")
    done = tool("hold-out", folder / "glyphs", folder / "none")
    check(done.returncode == 1 and "has 30 characters, fewer than 20000 + 5000" in done.stderr, f"{done}")
    for options in (("--train", 0), ("--train", 20, "--held-out", 1)):
        done = tool("hold-out", *options, folder / "glyphs", folder / "none")
        check(done.returncode == 2 and "--train is at least 1, and --held-out at least 2" in done.stderr, f"{done}")
    (folder / "glyphs/train/0000/other.png").write_bytes(picture(0, 8))
    done = tool("hold-out", "--train", 20, "--held-out", 6, folder / "glyphs", folder / "none")
    check(done.returncode == 1 and "both have other.png" in done.stderr and not (folder / "none").exists(), f"{done}")


def check_means(folder):
    """best.safetensors is of the mean accuracy of the sets that have one: four pairs are too few."""
    write_pairs(folder / "data/lfw.bin", 8)
    lines = train(folder, "--epochs", 1, "--val-targets", "lfw", "--output", folder / "means")
    val, lfw = (line[f"{name}_accuracy"] for name, line in zip(("val", "lfw"), lines[-2:]))
    content = (folder / "means/checkpoint.safetensors").read_bytes()
    best = json.loads(content[8:8 + struct.unpack("<Q", content[:8])[0]])["__metadata__"]["best_accuracy"]
    check(lfw is None and abs(float(best) - val) < 1e-6, f"a best accuracy of {best}, of {val} and {lfw}")
    done = TRAINER.run(*RUN, "-e", "--resume", folder / "means/checkpoint.safetensors", "--val-targets", "lfw", folder / "data")
    check(" * val: accuracy " in done.stdout and " * lfw:  (4 + 4 pairs" in done.stdout, f"eight pairs: {done}")


def check_errors(folder):
    train(folder, "--margin", "arc", expect="--margin: \"arc\" is none of")
    train(folder, "-e", expect="--evaluate needs a model")
    train(folder, "--model-parallel-size", 2, expect="--model-parallel-size needs --enable-model-parallel")
    train(folder, "--optimizer", "lars", "--sample-rate", "0.1", expect="moves all rows of the classifier")
    train(folder, "--sample-rate", "0.1", "--sample-correction", expect="--sample-correction is for a --sample-rate below 1 and --margin")
    for options, text in ((["--head-stash", 0.1], "--head-stash: with --margin arcface:0.2 a loss keeps no logits"),
                          (["--head-stash", 0, "--margin", "none", "--sample-rate", 0.5], "--head-stash: with --sample-rate a loss")):
        train(folder, *options, expect=text)
    check(train(folder, "--head-stash", 0.1, "--margin", "none", "--steps", 1, "--val-interval", 0), "a stash without a margin")
    train(folder, data="nowhere", expect="nowhere/train: No such file")
    train(folder, "--lr", "1e30", "--clip-grad", 0, "--warmup-epochs", 0, expect="take a smaller --lr")
    help_text = TRAINER.run("--help")
    check(help_text.returncode == 0 and "--val-targets NAMES" in help_text.stdout and "(arcface:0.5)" in help_text.stdout,
          f"{help_text}")
    for name, identities, count in (("single", 5, 1), ("alone", 1, 5)):
        (folder / name).mkdir()
        (folder / name / "train").symlink_to(folder / "data/train")
        write_folder(folder / name / "val", range(100, 100 + identities), count)
        train(folder, data=name, ranks=2, expect=f"{name}/val: 5 images of {identities} identities; verification needs two identities")
    check_means(folder)
    damaged = folder / "data/val/0103/2.png"
    content = damaged.read_bytes()
    damaged.write_bytes(content[:100])
    train(folder, "--skip-bad-images", 1, "--epochs", 1, ranks=2, expect="0103/2.png")
    damaged.write_bytes(content)
    damaged = folder / "data/train/0003/2.png"
    damaged.write_bytes(damaged.read_bytes()[:100])
    train(folder, expect="0003/2.png")
    lines = train(folder, "--skip-bad-images", 1)
    check(sum(line["images"] for line in lines[:5]) == IDENTITIES * OF_EACH - 1, f"{lines[:5]}")


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        make_data(folder)
        one = train(folder)
        check_ranks(folder, one)
        check_augmentation(folder, one)
        check_records(folder, one)
        check_losses(folder)
        check_norms(folder)
        check_adaface(folder)
        check_mirrored(folder)
        check_wide(folder, one)
        check_resume(folder, one)
        check_rest(folder)
        check_hold_out(folder)
        check_errors(folder)
    return report()


if __name__ == "__main__":
    sys.exit(main())
