"""gpu_pack.py BUILD DIR [TESTS]: DIR/prebuilt.tar.xz, a build's programs and plugins and the libraries that they need beyond the
C library and CUDA, stripped, for tools/check-gpu --prebuilt DIR on a machine without a compiler. TESTS: only these test
programs, patterns with commas between.
"""
import io
import json
import lzma
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile

MOST_MIB = 52  # with the tree that travels with it, 64 MiB at the most
# Of every system, or of CUDA, which that machine brings.
THERE = re.compile(r"(ld-linux|libc|libm|libdl|librt|libpthread|libresolv|libcuda|libcudart|libcublas|libcublasLt|libcudnn|libnccl|libnvrtc)\b.*\.so")
PROGRAMS = ["tools/bench_gpu", "tools/shardrun", "projects/imagenet/imagenet", "libshard/libshard*.so*",
            "tests/support/cuda_emulation/*.so"]


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def files_of(build, tests):
    """Files, and the links of a shared library, by the path in the build."""
    patterns = [f"tests/test_{stem}" for stem in tests.split(",")] + PROGRAMS
    found = [path for pattern in patterns for path in sorted(build.glob(pattern)) if path.is_file() and not path.name.endswith((".p", ".symbols", ".a"))]
    if not any(path.name == "libshard-cuda.so" for path in found):
        sys.exit(f"{build} has no libshard/libshard-cuda.so: build it first, tools/build gpu -Dcuda=enabled")
    return found


def libraries_of(files):
    """What they load that is in no such file, by name."""
    found = {}
    for path in files:
        for name, place in re.findall(r"(\S+) => (/\S+)", output("ldd", str(path))):
            if not THERE.match(name) and not name.startswith("libshard"):
                found[name] = pathlib.Path(place).resolve()
    return found


def glibc_of(paths):
    """The newest version of the C library that one of them asks for."""
    versions = {tuple(map(int, match.split("."))) for path in paths for match in re.findall(r"GLIBC_(\d+\.\d+)", output("objdump", "-T", str(path)))}
    return ".".join(map(str, max(versions)))


def options_of(build):
    options = {option["name"]: option["value"] for option in json.loads((build / "meson-info/intro-buildoptions.json").read_text(encoding="utf-8"))}
    return {"gencode": options["gencode"] if options["cuda"] != "emulated" else [], "emulated": options["cuda"] == "emulated"}


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    build, folder = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    files = files_of(build, sys.argv[3] if len(sys.argv) > 3 else "*")
    libraries = libraries_of(files)
    try:
        commit = output("git", "rev-parse", "--short", "HEAD").strip()
    except (OSError, subprocess.CalledProcessError):
        commit = ""
    pack = {**options_of(build), "glibc": glibc_of([*files, *libraries.values()]), "commit": commit, "libraries": sorted(libraries)}
    folder.mkdir(parents=True, exist_ok=True)
    target, new = folder / "prebuilt.tar.xz", folder / ".prebuilt.tar.xz.new"
    # Programs have most of their code in common: a large dictionary finds it.
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 2, "dict_size": 64 << 20}]
    with lzma.open(new, "w", filters=filters) as packed, tarfile.open(fileobj=packed, mode="w|") as tar, tempfile.TemporaryDirectory() as scratch:
        for path, name in [(path, str(path.relative_to(build))) for path in files] + [(path, f"lib/{name}") for name, path in libraries.items()]:
            stripped = pathlib.Path(scratch) / "stripped"
            subprocess.run(["strip", "-o", str(stripped), str(path)], check=True)
            tar.add(stripped, name)
        text = json.dumps(pack, indent=1).encode()
        entry = tarfile.TarInfo("pack.json")
        entry.size = len(text)
        tar.addfile(entry, io.BytesIO(text))
    new.replace(target)
    size = target.stat().st_size / (1 << 20)
    print(f"{target}: {size:.1f} MiB, {len(files)} programs and libraries, for {', '.join(pack['gencode']) or 'the emulated device'}, glibc {pack['glibc']}")
    if size > MOST_MIB:
        sys.exit(f"{target} is larger than {MOST_MIB} MiB: pack a build of one -Dgencode")


main()
