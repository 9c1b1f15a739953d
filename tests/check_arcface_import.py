"""check_arcface_import.py SHARDRUN ARCFACE: import-insightface with files as insightface writes them. Where torch is not installed,
support/torch_stub takes its place, here and in the script."""
import json
import os
import pathlib
import struct
import sys
import tempfile

try:
    import torch
except ImportError:
    STUB = os.path.join(os.path.dirname(os.path.abspath(__file__)), "support/torch_stub")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (STUB, os.environ.get("PYTHONPATH"))))
    sys.path.insert(0, STUB)
    import torch

from check_arcface import IDENTITIES, check, compare, make_data, read_rows, report, tool, train


def check_import(folder):
    """Files as PartialFC writes them on three GPUs, loaded by two ranks."""
    whole = torch.randn(IDENTITIES, 16)
    for gpu, (first, last) in enumerate(((0, 7), (7, 14), (14, 20))):
        torch.save({"weight": whole[first:last].clone(), "weight_mom": torch.zeros(1)}, folder / f"softmax_fc_gpu_{gpu}.pt")
    parts = [folder / f"softmax_fc_gpu_{gpu}.pt" for gpu in (2, 0, 1)]
    done = tool("import-insightface", folder / "fc.safetensors", "--classifier", *parts)
    check(done.returncode == 0 and "a classifier of 20 x 16" in done.stdout, f"{done}")
    keep = ["--lr", 0, "--steps", 1, "--val-interval", 0]
    train(folder, *keep, "--pretrained", folder / "fc.safetensors", "--enable-model-parallel", "--output", folder / "imported", ranks=2)
    shape, rows = read_rows(folder / "imported/model.safetensors", "classifier.weight")
    check(shape == [20, 16] and rows == whole.numpy().tobytes(), "the classifier is not that of the three files")
    # A backbone: the values of a run under insightface's names, as a .pt file.
    train(folder, "--steps", 3, "--val-interval", 0, "--output", folder / "own")
    content = (folder / "own/model.safetensors").read_bytes()
    header = json.loads(content[8:8 + struct.unpack("<Q", content[:8])[0]])
    types = {"F32": torch.float32, "I64": torch.int64}
    state = {}
    for name, entry in header.items():
        if name.startswith("backbone."):
            values = torch.frombuffer(bytearray(read_rows(folder / "own/model.safetensors", name)[1]), dtype=types[entry["dtype"]])
            state["module." + name[len("backbone."):]] = values.reshape(entry["shape"])
    torch.save({"state_dict_backbone": state, "state_dict_softmax_fc": {"weight": whole}}, folder / "checkpoint_gpu_0.pt")
    both = folder / "checkpoint_gpu_0.pt"
    done = tool("import-insightface", folder / "both.safetensors", "--backbone", both, "--classifier", both)
    check(done.returncode == 0, f"{done}")
    found = train(folder, "-e", "--pretrained", folder / "both.safetensors")
    expected = train(folder, "-e", "--pretrained", folder / "own/model.safetensors")
    compare("the imported backbone", [found[0]["val_accuracy"]], [expected[0]["val_accuracy"]], 0)
    (folder / "text_gpu_0.pt").write_text("hello")
    for broken, text in (([parts[0], parts[2]], "files of the GPUs [1, 2]"), ([folder / "none_gpu_0.pt"], "No such file"),
                         ([folder / "text_gpu_0.pt"], "text_gpu_0.pt: not a file of tensors"),
                         ([parts[1], both.rename(folder / "softmax_fc_gpu_1b.pt")], "7 rows, and GPU 0 of 2 has 14 of 27")):
        done = tool("import-insightface", folder / "x.safetensors", "--classifier", *broken)
        check(done.returncode == 1 and text in done.stderr, f"{broken}: {done}")


def check_names(folder):
    """11 files, whose order as texts is another one, of float16 and with the prefixes of DistributedDataParallel and torch.compile."""
    whole = torch.frombuffer(bytearray(range(256)) * 2, dtype=torch.float16).reshape([32, 8])
    sizes, paths, first = [3] * 10 + [2], [], 0
    for gpu, size in enumerate(sizes):
        name = ("weight", "module.weight", "_orig_mod.weight", "module._orig_mod.weight")[gpu % 4]
        paths.append(folder / f"softmax_fc_gpu_{gpu}.pt")
        torch.save({name: whole[first:first + size].clone()}, paths[-1])
        first += size
    done = tool("import-insightface", folder / "half.safetensors", "--classifier", *sorted(paths))
    shape, rows = read_rows(folder / "half.safetensors", "classifier.weight")
    check(done.returncode == 0 and shape == [32, 8] and rows == whole.numpy().tobytes(), f"11 files: {done}, {shape}")


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        make_data(folder)
        check_import(folder)
        check_names(folder)
    return report()


if __name__ == "__main__":
    sys.exit(main())
