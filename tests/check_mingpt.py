"""check_mingpt.py SHARDRUN MINGPT PARTS PREPARE: the text that prepare makes of an index, byte pairs and their files, training on
one rank and on several, the key-value cache, generation, resuming on another number of ranks, and errors."""
import json
import math
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

from support.trainers import LIMIT, Trainer, check, compare, report

SHARDRUN, MINGPT, PARTS, PREPARE = sys.argv[1:]
MODEL = "--n-layer 2 --n-head 4 --n-embd 32 --block-size 16".split()
RUN = MODEL + "-b 12 --epochs 2 --lr 0.01 --seed 5 --val-interval 2".split()
ONCE = "-b 12 --epochs 1 --embd-pdrop 0 --resid-pdrop 0".split() # with the sizes of --init-from
NOUNS = "audio browser compiler editor fonts game image kernel library music network office parser python server shell".split()

# A text's words, by the regex package and GPT-2's pattern.
WORDS = ["I", "'m", " sure", ",", " we", "'ve", " can", "'t", " '", "d", "  ", " two", "   \n\n", "\t", "tabs", " x", "'ll", " y", "'",
         "RE", " 123", "abc", "½Ⅷ", " éàü", " 漢字かな", "🎉", " ", "\u00a0", "nbsp", "\u2003", "em", "...!?", " a", "_", "b", " \r", "\n",
         "end", "  "]

# The merges and the tokens of "lowest newer\n" by the tokenizers package 0.23 (BpeTrainer, min_frequency 2), of this text.
BPE_TEXT = "low low low low low lower lower newest newest newest newest newest newest widest widest widest\n" * 2
BPE_MERGES = ["e s", "es t", "l o", "lo w", "e w", "n ew", "Ġ low", "Ġ new", "Ġnew est", "d est", "i dest", "w idest", "Ġ widest", "e r",
              "Ġlow er"]
BPE_IDS = [259, 257, 263, 269, 198]

# Files that are refused, and a part of the error. BIG is more than the file may have.
BIG = b'{"a": "' + b"a" * (1 << 20) + b'"}'
BAD_JSON = [
    (b"", "line 1: '[' or '{' expected near end of file"), (b"\n\n[1]", "not an object of JSON"), (b'"text"', "line 1: "),
    (b'{"a": 0,\n "b": 1', "line 2: "), (b'{"a": 0,\n\n "b" 1}', "line 3: ':' expected"), (b'{"a": 0}\n{"b": 1}', "line 2: end of file"),
    (b'{"a": 0,\n "a": 0}', "line 2: duplicate object key"), (b'{"a": 0,\n "\\u0061": 0}', "line 2: duplicate object key"),
    (b'{"a": 0,\n "\\ud800": 1}', "line 2: invalid Unicode '\\uD800'"), (b'{"a": 0,\n "\\q": 1}', "line 2: invalid escape"),
    (b'{"a": 0,\n "\xff": 1}', "line 2: unable to decode byte 0xff"), (b'{"a": 0,\n "\xc0\x80": 1}', "line 2: unable to decode byte 0xc0"),
    (b'{"a": 0,\n "\xed\xa0\x80": 1}', "line 2: unable to decode byte 0xed"), (b'{"a": 0,\n "b\x00": 1}', "line 2: control character 0x0"),
    (b'{"a": 0,\n "b\\u0000": 1}', "line 2: NUL byte in object key"), (b'{"a": "b\\u0000"}', "line 1: \\u0000 is not allowed"),
    (b'{"a": 0}\x00', "line 1: end of file expected"), (b'{"a": 1' + b"0" * 30 + b"}", "line 1: too big integer"),
    (b'{"a": 1e999}', "line 1: real number overflow"), (b'{"a": NaN}', "line 1: invalid token"),
    (b'{"a": ' + b"[" * 100000, "line 1: maximum parsing depth reached"),
]
BAD_VOCABULARIES = BAD_JSON + [
    (b"{}", "vocab.json: no tokens"), (b'{"!": 0, "\\u0022": 2}', "vocab.json: no token has the number 1"),
    (b'{"!": 0, "#": 1, "$": 1}', "vocab.json: two tokens have the number 1"),
    (b'{"!": 1.5}', 'the token "!" has the number 1.5, not an integer from 0 to'), (b'{"!": -1}', "has the number -1, not"),
    (b'{"!": 2147483648}', "has the number 2147483648, not"), (b'{"!": "0"}', "has the number 0, not"),
    (b'{"!": {}}', "has the number an object, not"), (b'{"!": [0]}', "has the number an array, not"), (b'{"!": null}', "number null"),
    (b'{"": 0}', "vocab.json: token 0 is empty, or has a character that stands for no byte"), (b'{"\xe6\xbc\xa2": 0}', "token 0 is empty"),
    (b'{"!": 0}', "vocab.json: no token is the byte 0x00 alone"),
]
BAD_CONFIGS = BAD_JSON + [
    (BIG, "config.json: 1048585 bytes, and such a file has 1048576 at most"), (b'{"n_layer": 1.5}', "its n_layer is 1.5, not an integer"),
    (b'{"n_layer": 0}', "its n_layer is 0, not an integer from 1 to 256"), (b'{"n_layer": "2"}', "its n_layer is 2, not an integer"),
    (b'{"n_embd": null}', "its n_embd is null, not an integer"), (b'{"vocab_size": 1e300}', "its vocab_size is 1e+300, not an integer"),
    (b'{"resid_pdrop": -0.5}', "its resid_pdrop is -0.5, not a number from 0 to 0.99"), (b'{"n_head": [12]}', "its n_head is an array, not"),
    (b'{"embd_pdrop": "0.1"}', "its embd_pdrop is 0.1, not a number"), (b'{"embd_pdrop": {}}', "its embd_pdrop is an object, not a number"),
    (b'{"n_head": 5}', "its n_embd, 768, is not a multiple of its n_head, 5"),
    (b'{"tie_word_embeddings": 1}', "its tie_word_embeddings is 1, not true or false"),
    (b'{"n_inner": 1000}', "its n_inner is 1000, and this program has 4 n_embd, 3072, alone"), (b'{"n_inner": true}', "n_inner is true, and"),
    (b'{"activation_function": "re\\u001blu"}', "its activation_function is re\\x1blu, and this program has gelu_new alone"),
    (b'{"scale_attn_weights": false}', "its scale_attn_weights is false, and this program has true alone"),
    (b'{"model_type": {}}', "its model_type is an object, and this program has gpt2 alone"),
]
TRAINER = Trainer(SHARDRUN, MINGPT)


def train(folder, *options, ranks=1, expect=None, base=None):
    return TRAINER.train(folder / "metrics.json", *(base or RUN), *options, folder / "text", ranks=ranks, expect=expect)


def start(program, *arguments, ranks=1):
    launcher = [SHARDRUN, "-n", str(ranks)] if ranks > 1 else []
    return subprocess.run([*launcher, program, *map(str, arguments)], capture_output=True, timeout=LIMIT,
                          env=dict(os.environ, OMP_NUM_THREADS="1"))


def text_of(done):
    return (done.stdout + done.stderr).decode("utf-8", "replace")


def read_tensors(path):
    """{name: (shape, numbers)} of a safetensors file of float32."""
    data = pathlib.Path(path).read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    tensors = {}
    for name, of in json.loads(data[8:8 + size]).items():
        if name != "__metadata__" and of["dtype"] == "F32":
            first, last = (8 + size + offset for offset in of["data_offsets"])
            tensors[name] = (of["shape"], struct.unpack(f"<{(last - first) // 4}f", data[first:last]))
    return tensors


def write_tensors(path, tensors):
    """The reverse of read_tensors, with the header's length that the format asks for."""
    header, data = {}, b""
    for name, (shape, numbers) in tensors.items():
        values = struct.pack(f"<{len(numbers)}f", *numbers)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + data)


def losses(lines):
    return [line["loss"] for line in lines]


# ---- text ----

def check_prepare(folder):
    (folder / "index").write_text("Package: one\nDescription: a tool\n with a second line\n .\n end\n\nPackage: none\n\n"
                                  + "".join(f"Package: filler{i}\nDescription: tool {i}\n\n" for i in range(30)))
    done = subprocess.run([sys.executable, PREPARE, "--index", folder / "index", folder / "prepared"], capture_output=True, timeout=LIMIT)
    check(done.returncode == 0 and done.stdout.startswith(b"32 packages: "), f"prepare: {done}")
    texts = [(folder / "prepared" / (stem + ".txt")).read_text() for stem in ("train", "val")]
    check("one: a tool\nwith a second line\n\nend\n\n" in texts[0] + texts[1], f"prepare: {texts}")
    check(sum(text.count(": tool ") for text in texts) == 30 and all(texts), f"prepare: {texts}")
    done = subprocess.run([sys.executable, PREPARE, "--index", "/dev/null", folder / "none"], capture_output=True, timeout=LIMIT)
    check(done.returncode == 1 and b"has no packages: run `apt-get update`" in done.stderr, f"prepare: {done}")


def check_words(folder):
    (folder / "words").write_bytes("".join(WORDS).encode())
    found = [int(size) for size in start(PARTS, "words", folder / "words").stdout.split()]
    check(found == [len(word.encode()) for word in WORDS], f"words: {found}")


def encode(folder, tokenizer, text):
    (folder / "encoded").write_bytes(text.encode())
    done = start(PARTS, "encode", tokenizer, folder / "encoded")
    check(done.returncode == 0, f"encode: {text_of(done)}")
    return [int(token) for token in done.stdout.split()]


def check_byte_pairs(folder):
    pairs = folder / "pairs"
    pairs.mkdir()
    (folder / "low").write_text(BPE_TEXT)
    done = start(PARTS, "train", folder / "low", 276, pairs)
    check(done.returncode == 0, f"byte pairs: {text_of(done)}")
    merges = (pairs / "merges.txt").read_text().splitlines()
    check(merges == ["#version: 0.2", *BPE_MERGES], f"merges: {merges}")
    vocabulary = json.loads((pairs / "vocab.json").read_text())
    order = sorted(vocabulary, key=vocabulary.get)
    check(len(order) == 257 + len(BPE_MERGES) and order[0] == "!" and order[187] == "ÿ" and order[188] == "Ā" and order[220] == "Ġ"
          and order[256] == BPE_MERGES[0].replace(" ", "") and order[-1] == "<|endoftext|>", f"vocabulary: {order}")
    check(encode(folder, pairs, "lowest newer\n") == BPE_IDS, f"tokens: {encode(folder, pairs, 'lowest newer' + chr(10))}")
    special = encode(folder, pairs, "low<|endoftext|>low")
    check(special == [vocabulary["low"], len(order) - 1, vocabulary["low"]], f"{special}")
    every = "".join(map(chr, [*range(1, 0x250), 0x2028, 0x3042, 0x1F600])) + "lll" * 50 + " " * 100
    encode(folder, pairs, every) # mingpt_program compares the tokens' texts with it
    again = folder / "again"
    again.mkdir()
    start(PARTS, "train", folder / "low", 276, again)
    check(all((pairs / name).read_bytes() == (again / name).read_bytes() for name in ("merges.txt", "vocab.json")), "not the same twice")
    (again / "merges.txt").write_text("#version: 0.2\nl o\nq q\n")
    check("merges.txt: line 3: not two tokens of vocab.json that make a third one" in text_of(start(PARTS, "encode", again, folder / "low")),
          "a merge without a token")
    (again / "merges.txt").write_bytes((pairs / "merges.txt").read_bytes() + b"\0l o\n")
    check("merges.txt: a byte 0" in text_of(start(PARTS, "encode", again, folder / "low")), "merges with a byte 0")


def check_characters(folder):
    characters = folder / "characters"
    characters.mkdir()
    (folder / "letters").write_text('b"é\\🎉a\n\t')
    done = start(PARTS, "train", folder / "letters", 0, characters)
    check(done.returncode == 0, f"characters: {text_of(done)}")
    expected = {c: i for i, c in enumerate(sorted('b"é\\🎉a\n\t'))}
    check(json.loads((characters / "vocab.json").read_text()) == expected, f"{(characters / 'vocab.json').read_text()}")
    check(encode(folder, characters, "aé🎉\n") == [expected[c] for c in "aé🎉\n"], "characters' tokens")
    (folder / "encoded").write_text("a\nx")
    check('line 2: the vocabulary has no character "x"' in text_of(start(PARTS, "encode", characters, folder / "encoded")), "x")


def check_bad_files(folder):
    bad, pairs = folder / "bad", folder / "pairs"
    bad.mkdir()
    (bad / "merges.txt").write_bytes((pairs / "merges.txt").read_bytes())
    for name, cases, arguments in (("vocab.json", BAD_VOCABULARIES, ["encode", bad, folder / "low"]),
                                   ("config.json", BAD_CONFIGS, ["copy", bad, folder / "copy.safetensors"])):
        for content, expect in cases:
            (bad / name).write_bytes(content)
            output = text_of(start(PARTS, *arguments))
            check(output.count(" error: ") == 1 and output.count("\n") == 1 and f"{name}: " in output and expect in output,
                  f"{name} {content[:60]}: not \"{expect}\": {output}")


# ---- training ----

def make_text(folder):
    (folder / "text").mkdir(exist_ok=True)
    lines = [f"{NOUNS[i % 16]}: {NOUNS[i * 7 % 13]} of the {NOUNS[i * 5 % 11]}\n" for i in range(150)]
    (folder / "text/train.txt").write_text("".join(lines[:130]))
    (folder / "text/val.txt").write_text("".join(lines[130:]))


def check_ranks(folder):
    """Runs with dropout on 1, 2, 3 and 4 ranks, with a head of its own and a tied one."""
    model, found = ["--enable-model-parallel"], {}
    for tied in ("yes", "no"):
        head = ["--tie-word-embeddings", tied]
        found[tied] = one = losses(train(folder, *head))
        check(len(one) == 39 and one[0] > 1.5 * one[-1] and one[-1] < 2, f"tied {tied}: the loss goes from {one[0]} to {one[-1]}")
        for ranks, options in ((2, model), (3, model), (2, []), (4, [*model, "--model-parallel-size", 2])):
            compare(f"tied {tied}, {ranks} ranks {options}", losses(train(folder, *head, *options, ranks=ranks)), one)
    return found


def check_computing(folder, one):
    for stage, tied in ((1, "no"), (2, "yes"), (3, "no")):
        found = losses(train(folder, "--tie-word-embeddings", tied, "--enable-zero-optim", stage, ranks=2))
        compare(f"ZeRO {stage}", found, one[tied])
    split = ["--enable-model-parallel", "--model-parallel-size", 2]
    compare("ZeRO 3 of a split model", losses(train(folder, "--enable-zero-optim", 3, *split, ranks=4)), one["yes"])
    plain = ["--embd-pdrop", 0, "--resid-pdrop", 0]
    whole = losses(train(folder, *plain))
    compare("two micro-batches with ZeRO 2", losses(train(folder, *plain, "--accumulate", 2, "--enable-zero-optim", 2, ranks=2)), whole)
    compare("two micro-batches", losses(train(folder, *plain, "--accumulate", 2, ranks=2)), whole)
    # A rate of 0.01 enlarges rounding, which differs between processors, to 0.02 in six steps.
    slow = [*plain, "--lr", 0.001, "--steps", 8]
    exact = losses(train(folder, *slow, ranks=2))
    half = losses(train(folder, *slow, "--enable-amp-mode", "bf16", "--enable-model-parallel", ranks=2))
    compare("bfloat16", half, exact, 1e-3)
    check(half != exact, "bfloat16 changes nothing")
    lines = train(folder, *slow, "--enable-amp-mode", "fp16", "--check-replicas", 5, ranks=2)
    check(not any(line.get("left_out") for line in lines), f"float16 leaves steps out: {lines}")
    half = [line["loss"] for line in lines]
    compare("float16", half, exact, 1e-3)
    check(half != exact and lines[0]["grad_scale"] > 1, f"float16 changes nothing, with a scale of {lines[0]['grad_scale']}")
    check(losses(train(folder))[5] != whole[5], "dropout changes nothing")


def check_text_after_option(folder):
    """A TEXT that is a file, or a folder, after an option whose value may be left out."""
    for text in ("text/train.txt", "text"):
        for option in ("--enable-amp-mode", "--enable-zero-optim"):
            done = start(MINGPT, *RUN, "--steps", 1, option, folder / text)
            check(done.returncode == 0, f"{option} {text}: {text_of(done)}")
    output = text_of(start(MINGPT, *RUN, "--enable-amp-mode", folder / "nothing"))
    check('nothing", nor a folder or file of that name; see --help' in output, f"--enable-amp-mode nothing: {output}")


def check_few_blocks(folder):
    """13 blocks for validation: the second of two ranks has none of the last batch, and ZeRO 3 gathers the values of both."""
    few = folder / "few"
    few.mkdir()
    make_text(few)
    path = few / "text/val.txt"
    path.write_text(path.read_text()[:13 * 16 + 1])
    short = ["--epochs", 1, "--val-interval", 1]
    one = train(few, *short)
    for options in (["--enable-zero-optim", 3], []):
        compare(f"13 blocks for validation, {options}", losses(train(few, *short, *options, ranks=2)), losses(one))
    check(one[-1].get("validation") and one[-1]["tokens"] == 13 * 16, f"13 blocks for validation: {one[-1]}")


def check_end_of_text(folder):
    """23 blocks of which an epoch takes 12: those at the end of the text are trained on, too."""
    end, found = folder / "end", []
    end.mkdir()
    make_text(end)
    path = end / "text/train.txt"
    text = path.read_text()[:24 * 16 + 1]
    for last in (text[14 * 16:], text[14 * 16:][::-1]):
        path.write_text(text[:14 * 16] + last)
        found.append(losses(train(end, "--val-interval", 0)))
    check(len(found[0]) == len(found[1]) == 2 and found[0] != found[1], f"the end of the text changes nothing: {found}")


def check_resume(folder):
    out, one = folder / "out", losses(train(folder, "--tokenizer", "bpe", "--vocab-size", 300))
    saved = ["--tokenizer", "bpe", "--vocab-size", 300, "--output", out, "--keep", 2, "--save-every", 3]
    compare("the first part", losses(train(folder, *saved, "--steps", 5)), one[:5], 0)
    newest = max(out.glob("step-*/checkpoint.safetensors"))
    check(newest.parent.name == "step-000005" and [path.name for path in out.glob("*.safetensors")] == ["model.safetensors"],
          f"{list(out.iterdir())}")
    for model in (out / "model.safetensors", newest): # earlier versions had no model before a validation
        begun = losses(train(folder, "--init-from", out, "--lr", "1e-9", base=ONCE))
        check(begun and begun[0] < one[0] - 0.5 * (one[0] - one[5]), f"--init-from a run that has not validated, {model.name}: {begun[:1]}")
        (out / "model.safetensors").unlink(missing_ok=True)
    shutil.copytree(out, folder / "partitioned")
    rest = train(folder, *saved[:4], "--output", folder / "partitioned", "--keep", 2, "--resume", "auto", "--enable-model-parallel",
                 "--model-parallel-size", 2, "--enable-zero-optim", 3, ranks=4)
    compare("the rest with ZeRO 3 of a split model", losses(rest), one[5:])
    rest = train(folder, *saved, "--save-async", "--check-replicas", 4, "--resume", "auto", "--enable-model-parallel", ranks=2)
    check(rest and rest[0]["step"] == 6, f"goes on with {rest[:1]}")
    compare("the rest on two ranks", losses(rest), one[5:])
    check(sorted(one.name for one in out.glob("*.*")) == sorted(["best.safetensors", "config.json", "merges.txt", "model.safetensors",
                                                                 "vocab.json"]), f"{list(out.iterdir())}")
    for of_model in (["--resume", out / "best.safetensors", "--tokenizer", "bpe", "--vocab-size", 300], ["--init-from", out]):
        again = train(folder, "-e", *of_model, base=MODEL + ["-b", "12"])
        compare(f"-e {of_model}", [again[0]["loss"], again[0]["bits_per_byte"]], [rest[-1]["loss"], rest[-1]["bits_per_byte"]], 1e-6)
    check(abs(rest[-1]["perplexity"] - math.exp(rest[-1]["loss"])) < 1e-3, f"{rest[-1]}")
    validation = (folder / "text/val.txt").read_text()
    bits = rest[-1]["loss"] / math.log(2) * len(encode(folder, out, validation)) / len(validation)
    compare("bits per byte", [rest[-1]["bits_per_byte"]], [bits], 1e-9)
    newest = max(out.glob("step-*/checkpoint.safetensors"))
    train(folder, "--n-layer", 1, "--resume", newest, "--tokenizer", "bpe", "--vocab-size", 300,
          expect="its n_layer is 2, not 1; start with the run's own --n-layer")
    train(folder, "--resume", newest, expect="start with the run's own TEXT and --tokenizer")
    begun = losses(train(folder, "--init-from", out, "--lr", "1e-9", base=ONCE))
    check(begun[0] < 0.7 * one[0], f"--init-from: {begun[0]}, after a run from {one[0]}")
    return out


# ---- the model's file, the cache, generation ----

def check_file(folder, out):
    model = read_tensors(out / "model.safetensors")
    shapes = {name: shape for name, (shape, _) in model.items()}
    check(len(shapes) == 4 + 2 * 12, f"{sorted(shapes)}")
    for name, shape in {"wpe.weight": [16, 32], "h.0.attn.c_attn.weight": [32, 96], "h.0.attn.c_attn.bias": [96], "ln_f.bias": [32],
                        "h.1.attn.c_proj.weight": [32, 32], "h.1.mlp.c_fc.weight": [32, 128], "h.1.mlp.c_proj.weight": [128, 32],
                        "h.0.ln_1.weight": [32], "h.0.mlp.c_fc.bias": [128]}.items():
        check(shapes.get("transformer." + name) == shape, f"{name} has shape {shapes.get('transformer.' + name)}")
    for ranks in (1, 2, 3):
        done = start(PARTS, "copy", out, folder / "copy.safetensors", ranks=ranks)
        check(done.returncode == 0 and read_tensors(folder / "copy.safetensors") == model, f"copy on {ranks} ranks: {text_of(done)}")
    check_masks(folder, out)


def check_masks(folder, out):
    """The masks of older versions of transformers are ignored, of bytes and of BOOL, which no tensor here can have."""
    masked = folder / "masked"
    shutil.copytree(out, masked, ignore=shutil.ignore_patterns("step-*", "best*"))
    data = (out / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header, values = json.loads(data[8:8 + size]), data[8 + size:]
    header.pop("__metadata__", None)
    for name, dtype in (("h.0.attn.bias", "BOOL"), ("h.1.attn.bias", "U8"), ("h.1.attn.masked_bias", "BOOL")):
        header["transformer." + name] = {"dtype": dtype, "shape": [1, 1, 16, 16], "data_offsets": [len(values), len(values) + 256]}
        values += bytes(256)
    text = json.dumps(header).encode()
    (masked / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + values)
    check(generate(masked, "--max-new-tokens", 5) == generate(out, "--max-new-tokens", 5), "a file with masks")
    header["transformer.h.0.ln_1.bias"]["dtype"] = "F8_E4M3"
    header["transformer.h.0.ln_1.bias"]["shape"] = [128]
    text = json.dumps(header).encode()
    (masked / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + values)
    output = text_of(start(MINGPT, "--generate", "--init-from", masked))
    check("transformer.h.0.ln_1.bias" in output, f"a weight of 8 bits: {output}")


def normalize(row, model, name):
    mean = sum(row) / len(row)
    deviation = math.sqrt(sum((x - mean) ** 2 for x in row) / len(row) + 1e-5)
    return [(x - mean) / deviation * w + b for x, w, b in zip(row, model[name + ".weight"][1], model[name + ".bias"][1])]


def multiply(row, model, name):
    """A row times a weight [in, out], as GPT-2's file has it, plus the bias."""
    (_, width), weight = model[name + ".weight"]
    result = list(model[name + ".bias"][1])
    for i, x in enumerate(row):
        for k, w in enumerate(weight[i * width:(i + 1) * width]):
            result[k] += x * w
    return result


def attend(queries, keys, values, size):
    """Of the last query to all keys, head by head."""
    result = []
    for head in range(0, len(queries), size):
        scores = [sum(q * k for q, k in zip(queries[head:head + size], key[head:head + size])) / math.sqrt(size) for key in keys]
        weights = [math.exp(score - max(scores)) for score in scores]
        result += [sum(w * value[i] for w, value in zip(weights, values)) / sum(weights) for i in range(head, head + size)]
    return result


def reference_logits(model, tokens, layers, heads):
    """GPT-2 by the names and shapes of its file, a token after the other."""
    model = {name.removeprefix("transformer."): value for name, value in model.items()}
    width = model["wte.weight"][0][1]
    rows = lambda name: [model[name][1][i:i + width] for i in range(0, len(model[name][1]), width)]
    embedding, positions, logits = rows("wte.weight"), rows("wpe.weight"), []
    keys, values = [[] for _ in range(layers)], [[] for _ in range(layers)]
    for at, token in enumerate(tokens):
        x = [a + b for a, b in zip(embedding[token], positions[at])]
        for i in range(layers):
            qkv = multiply(normalize(x, model, f"h.{i}.ln_1"), model, f"h.{i}.attn.c_attn")
            keys[i].append(qkv[width:2 * width])
            values[i].append(qkv[2 * width:])
            y = multiply(attend(qkv[:width], keys[i], values[i], width // heads), model, f"h.{i}.attn.c_proj")
            x = [a + b for a, b in zip(x, y)]
            y = multiply(normalize(x, model, f"h.{i}.ln_2"), model, f"h.{i}.mlp.c_fc")
            y = [0.5 * u * (1 + math.tanh(math.sqrt(2 / math.pi) * (u + 0.044715 * u ** 3))) for u in y]
            x = [a + b for a, b in zip(x, multiply(y, model, f"h.{i}.mlp.c_proj"))]
        x = normalize(x, model, "ln_f")
        logits += [sum(a * b for a, b in zip(x, row)) for row in embedding]
    return logits


def compute_logits(folder, out, step, tokens, ranks=1):
    done = start(PARTS, "logits", out, folder / "logits.safetensors", step, *tokens, ranks=ranks)
    check(done.returncode == 0, f"logits on {ranks} ranks: {text_of(done)}")
    return read_tensors(folder / "logits.safetensors")["logits"][1]


def check_cache(folder, out):
    tokens = [(7 * i * i + 3) % 290 for i in range(16)]
    whole = compute_logits(folder, out, 0, tokens)
    compare("logits", whole, reference_logits(read_tensors(out / "model.safetensors"), tokens, 2, 4))
    for ranks, step in ((1, 1), (1, 5), (2, 1), (3, 7), (2, 0)):
        compare(f"logits by {step} tokens on {ranks} ranks", compute_logits(folder, out, step, tokens, ranks), whole)
    done = start(PARTS, "logits", out, folder / "logits.safetensors", 1, *tokens, 1)
    check("1 tokens after 16, and a block has 16" in text_of(done), f"{text_of(done)}")


def generate(out, *options, ranks=1, prompt="audio"):
    done = start(MINGPT, "--generate", "--init-from", out, "--prompt", prompt, *options, ranks=ranks)
    check(done.returncode == 0, f"--generate {options}: {text_of(done)}")
    return done.stdout.decode("utf-8", "replace")


def check_generation(folder, out):
    """The most probable tokens are those of the logits without a cache; drawn ones are the same on any number of ranks."""
    greedy = generate(out, "--max-new-tokens", 10)
    tokens = encode(folder, out, greedy[:-1])
    logits = compute_logits(folder, out, 0, tokens[:16])
    width = len(logits) // len(tokens[:16])
    for i in range(len(tokens) - 11, min(len(tokens), 16) - 1):
        row = logits[i * width:(i + 1) * width]
        check(max(row) - row[tokens[i + 1]] < 1e-4, f"token {i + 1} is {tokens[i + 1]}, of {greedy}")
    for options in (["--do-sample"], ["--do-sample", "--top-k", 4, "--temperature", 0.7, "--num-samples", 3]):
        one = generate(out, "--max-new-tokens", 30, *options)
        check(len(one) > 40 and one.startswith("audio" if len(options) == 1 else "-----"), f"{options}: {one}")
        for ranks, split in ((2, ["--enable-model-parallel"]), (4, ["--enable-model-parallel", "--model-parallel-size", 2]), (2, [])):
            check(generate(out, "--max-new-tokens", 30, *options, *split, ranks=ranks) == one, f"{options} on {ranks} ranks {split}")
    first, second = (generate(out, "--do-sample", "--max-new-tokens", 30, "--seed", seed) for seed in (1, 2))
    check(first != second, f"two seeds draw {first}")
    check(generate(out, "--max-new-tokens", 30, "--do-sample", "--top-k", 10000) == generate(out, "--max-new-tokens", 30, "--do-sample"),
          "top-k of the whole vocabulary")
    check(generate(out, "--max-new-tokens", 30, "--do-sample", "--top-k", 1) == generate(out, "--max-new-tokens", 30), "top-k 1")


def check_full_device(folder, out):
    """A text that standard output does not take is an error, on all ranks."""
    for ranks in (1, 2):
        launcher = [SHARDRUN, "-n", str(ranks)] if ranks > 1 else []
        with open("/dev/full", "wb") as full:
            for options, text in ((["--generate", "--init-from", out, "--max-new-tokens", "3"], b"standard output: No space left"),
                                  (["-e", "--resume", out / "best.safetensors", *MODEL, "--tokenizer", "bpe", "--vocab-size", "300", folder / "text"], b"standard output: an earlier write failed"),
                                  (["--help"], b"the help cannot be written: No space left")):
                done = subprocess.run([*launcher, MINGPT, *options], stdout=full, stderr=subprocess.PIPE, timeout=LIMIT,
                                      env=dict(os.environ, OMP_NUM_THREADS="1"))
                check(done.returncode == 1 and done.stderr.count(text) == 1, f"/dev/full, {ranks} ranks: {done}")


def check_bench(folder):
    """bench.py without PyTorch: characters, whose number is TEXT's, and byte pairs."""
    bench = pathlib.Path(PREPARE).parent / "bench.py"
    options = "--no-torch --model-type gpt-nano --block-size 16 --batch-size 12 --steps 4 --warmup 1 --threads 1 --ranks 1,2".split()
    for tokenizer, loss in (("char", "loss 3.2"), ("bpe", "loss 5.7")): # the logarithms of 25 and 300
        done = subprocess.run([sys.executable, bench, *options, "--mingpt", MINGPT, "--shardrun", SHARDRUN, "--tokenizer", tokenizer,
                               "--vocab-size", "300", folder / "text"], capture_output=True, text=True, timeout=LIMIT)
        check(done.returncode == 0 and done.stdout.count("tokens/s") == 2 and loss in done.stdout, f"{tokenizer}: {done}")


def check_padded_vocabulary(folder, out):
    """Rows of the vocabulary beyond the tokens, of which one has the largest logit at each step, are never taken."""
    padded, model = folder / "padded", read_tensors(out / "model.safetensors")
    shutil.copytree(out, padded, ignore=shutil.ignore_patterns("step-*", "*.safetensors"))
    (rows, width), numbers = model["transformer.wte.weight"]
    numbers += tuple(30 * sign * x for sign in (1, -1) for x in numbers[:25 * width])
    model["transformer.wte.weight"] = ([rows + 50, width], numbers)
    write_tensors(padded / "model.safetensors", model)
    config = json.loads((out / "config.json").read_text())
    (padded / "config.json").write_text(json.dumps(dict(config, vocab_size=rows + 50)))
    for options in ([], ["--do-sample"], ["--do-sample", "--top-k", 3]):
        one = generate(out, "--max-new-tokens", 12, *options)
        for ranks, split in ((1, []), (2, ["--enable-model-parallel"]), (3, ["--enable-model-parallel"])):
            found = generate(padded, "--max-new-tokens", 12, *options, *split, ranks=ranks)
            check(found == one, f"padded vocabulary, {options} on {ranks} ranks: {found}, not {one}")


def check_long_prompt(folder, out):
    """Only the last block of a text is seen: a prompt that is longer has the same continuation as its last block."""
    long = "audio browser: kernel of the compiler " * 3
    tokens = encode(folder, out, long)
    check(len(tokens) > 32, f"a prompt of {len(tokens)} tokens")
    last = [text for text in (long[i:] for i in range(len(long))) if len(encode(folder, out, text)) == 16]
    for ranks, split in ((1, []), (2, ["--enable-model-parallel"])):
        whole, short = (generate(out, "--max-new-tokens", 12, *split, ranks=ranks, prompt=text) for text in (long, last[0]))
        check(whole[len(long):] == short[len(last[0]):] and len(whole) > len(long) + 12, f"{whole} and {short} on {ranks} ranks")


def wait_for_handlers(process, ranks):
    """Until each rank handles SIGHUP, the last of its signals."""
    end = time.monotonic() + LIMIT
    while time.monotonic() < end and process.poll() is None:
        try:
            children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            states = [pathlib.Path(f"/proc/{pid}/status").read_text() for pid in (children if ranks > 1 else [process.pid])]
        except FileNotFoundError: # a child that has ended
            continue
        caught = [int(line.split()[1], 16) for text in states for line in text.splitlines() if line.startswith("SigCgt:")]
        if len(caught) == ranks and all(mask & 1 << (signal.SIGHUP - 1) for mask in caught):
            return
        time.sleep(0.01)


def check_interrupts(folder, out):
    """A Ctrl-C, or the end of its terminal, ends --generate after the token that is drawn, on all ranks, and prints the text so far."""
    for number, ranks in ((signal.SIGINT, 1), (signal.SIGINT, 2), (signal.SIGHUP, 1), (signal.SIGHUP, 2)):
        launcher = [SHARDRUN, "-n", str(ranks)] if ranks > 1 else []
        process = subprocess.Popen([*launcher, MINGPT, "--generate", "--init-from", out, "--prompt", "audio", "--max-new-tokens", "200000"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(os.environ, OMP_NUM_THREADS="1"),
                                   preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL)) # under nohup it is ignored
        wait_for_handlers(process, ranks)
        try:
            process.send_signal(number)
            output, errors = process.communicate(timeout=LIMIT)
            check(process.returncode == 128 + number and output.startswith(b"audio") and len(output) < 200000,
                  f"{number.name} on {ranks} ranks: {process.returncode}, {len(output)} bytes, {errors}")
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            check(False, f"--generate on {ranks} ranks goes on after a {number.name}")


def most_memory(*arguments):
    """The output of a process and the most memory that it had, in bytes."""
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen([*map(str, arguments)], stdout=subprocess.DEVNULL, stderr=errors)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        return errors.read().decode(), 1024 * used.ru_maxrss


def check_sizes(folder, out):
    """Sizes of config.json that are not the file's are an error before memory of these sizes is taken."""
    claimed, config = folder / "claimed", json.loads((out / "config.json").read_text())
    shutil.copytree(out, claimed, ignore=shutil.ignore_patterns("step-*"))
    small = most_memory(MINGPT, "--generate", "--init-from", out, "--max-new-tokens", 1)[1]
    for sizes, text in ((dict(n_embd=1024, vocab_size=200000), "its transformer.wte.weight is [300, 32], and by config.json it is [200000, 1024]"),
                        (dict(n_positions=4000000), "its transformer.wpe.weight is [16, 32], and by config.json it is [4000000, 32]"),
                        (dict(n_layer=256), "there is no transformer.h.2.ln_1.weight"), (dict(n_layer=1), "h.1."),
                        (dict(n_embd=64), "by config.json it is [300, 64]"), (dict(tie_word_embeddings=False), "there is no lm_head.weight")):
        (claimed / "config.json").write_text(json.dumps(dict(config, **sizes)))
        output, used = most_memory(MINGPT, "--generate", "--init-from", claimed)
        check(text in output and used < small + (100 << 20), f"{sizes}: {used >> 20} MiB, not \"{text}\": {output}")
    done = start(MINGPT, "--generate", "--init-from", claimed, ranks=2)
    check(text_of(done).count(" error: ") == 1 and "there is no lm_head.weight" in text_of(done), f"on two ranks: {text_of(done)}")


def check_other_files(folder, out):
    """Files of a folder that are not regular, or too large, and a folder without a model."""
    odd = folder / "odd"
    shutil.copytree(out, odd, ignore=shutil.ignore_patterns("step-*"))
    for name in ("merges.txt", "vocab.json", "config.json"):
        content = (odd / name).read_bytes()
        (odd / name).unlink()
        os.mkfifo(odd / name)
        check(f"{name}: not a regular file" in text_of(start(MINGPT, "--generate", "--init-from", odd)), f"{name}: a FIFO")
        (odd / name).unlink()
        with open(odd / name, "wb") as file:
            file.truncate(100 << 20)
        check(f"{name}: 104857600 bytes, and such a file has" in text_of(start(MINGPT, "--generate", "--init-from", odd)), name)
        (odd / name).write_bytes(content)
    for name in ("train.txt", "val.txt"):
        shutil.copytree(folder / "text", odd / name)
        (odd / name / name).unlink()
        os.mkfifo(odd / name / name)
        output = text_of(start(MINGPT, *ONCE, *MODEL, odd / name, ranks=2))
        check(f"{name}/{name}: not a regular file" in output, f"{name}, a FIFO: {output}")
    for name in ("model", "best"):
        (odd / (name + ".safetensors")).unlink()
    output = text_of(start(MINGPT, "--generate", "--init-from", odd, ranks=2))
    check("there is no model.safetensors, checkpoint.safetensors or step-N/checkpoint.safetensors" in output, f"no model: {output}")


def check_output(folder, out):
    """The files next to a model are replaced as a whole, and not by those of another network."""
    other, files = folder / "other", ("config.json", "vocab.json")
    other.mkdir()
    (other / "merges.txt").write_bytes((out / "merges.txt").read_bytes())
    for name in files:
        (other / name).write_text("old")
        os.link(other / name, folder / ("link_" + name))
    train(folder, "--steps", 2, "--output", other)
    check(not (other / "merges.txt").exists() and len(json.loads((other / "vocab.json").read_text())) > 10, f"{list(other.iterdir())}")
    check(all((folder / ("link_" + name)).read_text() == "old" for name in files), "a file was written in place")
    check(not list(other.glob("*.tmp")), f"{list(other.iterdir())}")
    check(len(generate(other, "--max-new-tokens", 3)) > 8, "a run of characters next to an old merges.txt")
    one = ["--n-layer", 1, "--output", other]
    train(folder, "--steps", 1, *one, "--overwrite")
    config, vocabulary = (json.loads((other / name).read_text()) for name in files)
    check(config["n_layer"] == 1 and len(generate(other, "--max-new-tokens", 3)) > 8, f"another network in place of one: {config}")
    tokens = sorted(vocabulary, key=vocabulary.get)
    for name, content, text in (("config.json", config | {"n_layer": 2}, "network"),
                                ("vocab.json", vocabulary | {tokens[0]: 1, tokens[1]: 0}, "vocabulary")):
        before = (other / name).read_bytes()
        (other / name).write_text(json.dumps(content))
        train(folder, "--steps", 2, *one, "--resume", "auto", expect=f"has a model.safetensors of another {text}: take another folder")
        check(json.loads((other / name).read_text()) == content, "the files of another network")
        (other / name).write_bytes(before)
    (other / "config.json").unlink()
    train(folder, "--steps", 2, *one, "--resume", "auto", expect="has a model.safetensors of an unknown network (")


def check_ignored_options(folder, out):
    """Options that a run would make no use of, or that differ from the files of --init-from."""
    for options, text in ((["--tie-word-embeddings", "no"], "--tie-word-embeddings no: the model of --init-from has yes"),
                          (["--model-type", "gpt2"], "--model-type gpt2: the model of --init-from has 2 layers, 4 heads and 32"),
                          (["--tokenizer", "char"], "--tokenizer char: the model of --init-from has bpe; leave the option out"),
                          (["--vocab-size", 5000], "--vocab-size 5000: the model of --init-from has 300; leave the option out")):
        train(folder, "--init-from", out, *options, base=["-b", "12"], expect=text)
    train(folder, "--vocab-size", 300, expect="--vocab-size needs --tokenizer bpe")
    train(folder, "--embd-pdrop", -0.5, expect="--embd-pdrop -0.5: not a number from 0 to 0.99, or -1")
    for options in (["--prompt", "a"], ["--do-sample"], ["--max-new-tokens", 3], ["--num-samples", 2], ["--top-k", 2], ["--temperature", 2]):
        train(folder, *options, expect=f"{options[0]} needs --generate: without it TEXT is trained on")
    for options in (["--resume", "/nonexistent"], ["--metrics", "m"], ["--output", "o"], ["--tensorboard", "t"], ["--epochs", 3], ["-e"],
                    ["--lr", 3], ["--accumulate", 2], ["--embd-pdrop", 0.5], ["--enable-zero-optim"], ["--val-interval", 5],
                    ["--optimizer", "sgd"]):
        name = options[0] if options[0] != "-e" else "--evaluate"
        output = text_of(start(MINGPT, "--generate", "--init-from", out, *options))
        check(f"{name} is of training: leave it out with --generate" in output, f"{options}: {output}")
    for options, text in ((["--top-k", 3], "--top-k needs --do-sample"), (["--temperature", 0.001], "--temperature needs --do-sample"),
                          (["--vocab-size", 5000], "--vocab-size 5000: the model"), (["--n-layer", 3], "--n-layer 3: the model")):
        check(text in text_of(start(MINGPT, "--generate", "--init-from", out, *options)), f"{options}: not {text}")
    dropout = folder / "dropout"
    shutil.copytree(out, dropout, ignore=shutil.ignore_patterns("step-*"))
    config = json.loads((out / "config.json").read_text())
    (dropout / "config.json").write_text(json.dumps(dict(config, embd_pdrop=0, resid_pdrop=0)))
    begin, given = ["-b", "12", "--steps", "2", "--seed", "5"], ["--embd-pdrop", 0, "--resid-pdrop", 0]
    none = losses(train(folder, "--init-from", dropout, base=begin))
    compare("no dropout in config.json", none, losses(train(folder, "--init-from", out, *given, base=begin)), 0)
    check(none != losses(train(folder, "--init-from", out, base=begin)), "the dropout of config.json changes nothing")


def check_long_paths(folder):
    """A folder's path may be as long as the system allows."""
    for bytes_, code, text in ((3000, 0, "Epoch 0"), (4090, 1, "TEXT: a path of more than 4095 bytes")):
        rest = bytes_ - len(f"{folder}/text")
        done = start(MINGPT, *RUN, "--steps", 1, f"{folder}/" + "./" * (rest // 2) + "/" * (rest % 2) + "text")
        check(done.returncode == code and text in text_of(done), f"a path of {bytes_} bytes: {text_of(done)[-400:]}")


def check_errors(folder, out):
    train(folder, "-b", 12, "--accumulate", 5, expect="--accumulate 5 does not divide a --batch-size of 12")
    train(folder, "-b", 2, "--accumulate", 2, ranks=2, expect="1 blocks at a time for 2 ranks that are data parallel")
    train(folder, "--n-head", 3, expect="--n-embd 32 is not a multiple of --n-head 3")
    train(folder, "--n-head", 2, "--enable-model-parallel", ranks=3, expect="2 heads over 3 ranks: each needs one")
    train(folder, "--block-size", 4096, expect="tokens for validation are less than a block")
    train(folder, "-b", 4096, expect="less than a --batch-size of 4096")
    train(folder, "-e", expect="--evaluate needs a model")
    train(folder, "--init-from", out, "--n-layer", 3, expect="--n-layer 3: the model of --init-from has 2; leave the option out")
    lamb = ["--optimizer", "lamb", "--steps", 4]
    check(losses(train(folder, *lamb)) != losses(train(folder, *lamb, "--beta2", 0.5)), "--beta2 of LAMB changes nothing")
    train(folder, "--optimizer", "sgd", "--beta2", 0.5, expect="--beta2 needs --optimizer adam, adamw or lamb; leave it out")
    diverging = ["--lr", "1e30", "--optimizer", "sgd", "--clip-grad", 0]
    train(folder, *diverging, expect="take a smaller --lr")
    lost = train(folder, *diverging, "--steps", 4, "--accumulate", 2, "--non-finite", "skip", ranks=2)
    check(lost[0]["left_out"] is False and lost[3]["left_out"] is True and lost[3]["loss"] is None, f"skipped: {lost}")
    for arguments, text in ((["--generate"], "--generate needs a model"), (["--generate", "--init-from", out, "--top-k", 3],
                                                                           "--top-k needs --do-sample")):
        check(text in text_of(start(MINGPT, *arguments)), f"{arguments}: not {text}")
    (folder / "few.txt").write_bytes(b"good text")
    output = text_of(start(MINGPT, folder / "few.txt"))
    check("few.txt: 9 bytes are too few to divide" in output, f"9 bytes: {output}")
    (folder / "text/val.txt").write_bytes(b"good\nbad \xff\n")
    train(folder, ranks=2, expect="val.txt: line 2: a byte 0, or malformed UTF-8")
    config = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps(dict(config, activation_function="relu")))
    check("its activation_function is relu, and this program has gelu_new alone" in text_of(start(MINGPT, "--generate", "--init-from", out)),
          "relu")
    help_text = text_of(start(MINGPT, "--help"))
    check("--tensorboard DIR" in help_text and "(0.0005)" in help_text and "--n-embd N" in help_text, f"{help_text}")


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        check_prepare(folder)
        check_words(folder)
        check_byte_pairs(folder)
        check_characters(folder)
        check_bad_files(folder)
        make_text(folder)
        check_computing(folder, check_ranks(folder))
        check_text_after_option(folder)
        check_few_blocks(folder)
        check_end_of_text(folder)
        out = check_resume(folder)
        check_file(folder, out)
        check_cache(folder, out)
        check_generation(folder, out)
        check_full_device(folder, out)
        check_bench(folder)
        check_padded_vocabulary(folder, out)
        check_long_prompt(folder, out)
        check_interrupts(folder, out)
        check_sizes(folder, out)
        check_other_files(folder, out)
        check_ignored_options(folder, out)
        check_output(folder, out)
        check_long_paths(folder)
        check_errors(folder, out)
    return report()


if __name__ == "__main__":
    sys.exit(main())
