"""What tools/check-gpu needs of a machine, and what the machine is.

gpu_facts.py check RESULTS [--bundle DIR] [--prebuilt DIR]   what is missing, in seconds; into RESULTS/facts.json
gpu_facts.py roots                              for -Dgpu_roots: folders of the wheels, for what the toolkit has not
gpu_facts.py library NAME, folders               where that library is; the folders of all, as LD_LIBRARY_PATH
gpu_facts.py warm                               reads CUDA's libraries, so that they are in memory when they are loaded
gpu_facts.py versions RESULTS BUILD             of the libraries that the build loads, as they say themselves
gpu_facts.py contexts RESULTS LIBRARY           seconds to make a context: with no other, one by one, 8 at once
gpu_facts.py hold SECONDS LIBRARY               keeps a context, so that the driver leaves the GPU initialized

check exits with 1 if what is missing is needed; each message says what to do.
"""
import argparse
import ctypes
import glob
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import time

LIBRARIES = {"cudart": "cuda_runtime_api.h", "cublas": "cublas_v2.h", "cublasLt": "cublasLt.h", "cudnn": "cudnn.h", "nccl": "nccl.h"}
PACKAGES = {"oneapi/dnnl/dnnl.h": "libdnnl-dev", "jansson.h": "libjansson-dev", "check.h": "check", "jpeglib.h": "libjpeg-dev", "png.h": "libpng-dev"}
QUERY = ["name", "compute_cap", "driver_version", "memory.total", "memory.used", "persistence_mode", "compute_mode", "mig.mode.current",
         "clocks.sm", "clocks.max.sm", "clocks.mem", "power.draw", "power.limit", "temperature.gpu", "pcie.link.gen.current", "pcie.link.width.current"]


def output(*command, limit=20, **options):
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=limit, **options).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


# ---- where CUDA is ----

def toolkit():
    nvcc = shutil.which("nvcc")
    folders = [pathlib.Path(nvcc).resolve().parent.parent] if nvcc else []
    return [folder for folder in [*folders, pathlib.Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))] if folder.is_dir()]


def library_folders(root):
    return [path for path in (root / "lib64", root / "lib", root / "lib/x86_64-linux-gnu", root / "targets/x86_64-linux/lib") if path.is_dir()]


def wheels():
    """Folders of the packages nvidia.*, which PyTorch brings; cu13 is one for most of CUDA 13."""
    code = "import nvidia; print(*nvidia.__path__, sep='\\n')"
    found = [pathlib.Path(folder) for path in output("python3", "-c", code).splitlines() for folder in glob.glob(path + "/*")]
    return {folder.name: folder for folder in found if library_folders(folder)}


def has(roots, library):
    return any(glob.glob(f"{folder}/lib{library}.so*") for root in roots for folder in library_folders(root)) and any(
        (root / "include" / LIBRARIES[library]).exists() for root in roots)


def roots():
    """The wheels' folders that the build gets: cuDNN and NCCL, and CUDA's own where the toolkit lacks something."""
    packages, own = wheels(), [*toolkit(), pathlib.Path("/usr")]
    chosen = [packages[name] for name in ("cudnn", "nccl") if name in packages]
    if not all(has(own, library) for library in ("cudart", "cublas", "cublasLt")):
        chosen += [packages[name] for name in ("cu13", "cublas", "cuda_runtime", "cuda_nvrtc") if name in packages]
    return chosen


def all_roots():
    return [*roots(), *toolkit(), *(path for path in wheels().values()), pathlib.Path("/usr")]


def find(library):
    """The first file of a library that is a shared object: not a linker script, not a stub."""
    for root in all_roots():
        for folder in library_folders(root):
            for path in sorted(glob.glob(f"{folder}/lib{library}.so*"), key=len):
                with open(path, "rb") as file:
                    if file.read(4) == b"\x7fELF":
                        return path
    return ""


def folders():
    """Of all libraries, as LD_LIBRARY_PATH; nvrtc is what cuDNN loads."""
    return ":".join(dict.fromkeys(os.path.dirname(path) for path in map(find, [*LIBRARIES, "nvrtc"]) if path))


# ---- checks ----

class Findings:
    def __init__(self):
        self.lines = []

    def add(self, good, what, otherwise, needed=True):
        self.lines.append({"good": bool(good), "needed": needed, "text": what if good else otherwise})

    def failed(self):
        return any(line["needed"] and not line["good"] for line in self.lines)


def version_of(text):
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


def number_in(text):
    found = re.search(r"[\d.]+", text)
    return float(found.group()) if found else 0.0


def query():
    """What nvidia-smi says of each GPU; a driver that does not know one of the fields refuses them all, and is asked one by one."""
    def ask_for(fields):
        text = output("nvidia-smi", "--query-gpu=" + ",".join(fields), "--format=csv,noheader")
        return [[cell.strip() for cell in row.split(",")] for row in text.splitlines()]
    rows = ask_for(QUERY)
    if rows:
        return [dict(zip(QUERY, row)) for row in rows]
    columns = [ask_for([field]) for field in QUERY]
    return [{field: column[i][0] if i < len(column) else "not known" for field, column in zip(QUERY, columns)} for i in range(max(map(len, columns)))]


def check_gpu(findings):
    smi = shutil.which("nvidia-smi")
    rows = query() if smi else []
    findings.add(smi, "nvidia-smi is there", "nvidia-smi is not in PATH: is this a machine with an NVIDIA driver? Add its folder to PATH")
    findings.add(rows or not smi, f"{len(rows)} GPU(s): {', '.join(row['name'] for row in rows)}", "nvidia-smi lists no GPU: its output is in nvidia-smi.txt")
    for i, row in enumerate(rows):
        findings.add(number_in(row["compute_cap"]) >= 8.0, f"GPU {i} has compute capability {row['compute_cap']}",
                     f"GPU {i} ({row['name']}) has compute capability {row['compute_cap']}: 8.0 or later is needed")
        findings.add(row["compute_mode"] in ("Default", "not known"), f"GPU {i} takes several processes",
                     f"GPU {i} is in compute mode {row['compute_mode']}: ranks cannot share it; only kernels and device will pass", False)
        findings.add(number_in(row["memory.used"]) < 2048, f"GPU {i} is free", f"GPU {i} has {row['memory.used']} in use by others: times will be off", False)
        findings.add(row["mig.mode.current"] != "Enabled", f"GPU {i} is whole", f"GPU {i} is cut by MIG: times are not those of the GPU", False)
    return rows


def check_build(findings, bundle):
    for program, why in (("nvcc", "set CUDA_HOME, or bring binaries: tools/check-gpu --prebuilt DIR"), ("gcc", "bring binaries: --prebuilt DIR"),
                         ("g++", "nvcc needs it; bring binaries: --prebuilt DIR"), ("ninja", "pip install ninja")):
        findings.add(shutil.which(program), f"{program}: {shutil.which(program)}", f"{program} is not in PATH: {why}")
    meson = version_of(output("meson", "--version") if not os.path.exists("build/meson/bin/meson") else output("build/meson/bin/meson", "--version"))
    findings.add(meson >= (1, 0), f"Meson {'.'.join(map(str, meson))}", f"Meson 1.0 or later is not there (found: {meson or 'none'}): bring tools/bundle's folder, --bundle DIR")
    version = version_of("".join(re.findall(r"release ([\d.]+)", output("nvcc", "--version"))))
    findings.add(version >= (12, 0), f"CUDA {'.'.join(map(str, version))}", f"nvcc is of CUDA {version or 'no version'}: 12.0 or later is needed")
    places = [*roots(), *toolkit(), pathlib.Path("/usr")]
    for library, header in LIBRARIES.items():
        findings.add(has(places, library), f"lib{library} and {header}",
                     f"lib{library}.so or {header} is missing in {', '.join(map(str, places))}: install it, or the wheel nvidia-{library.lower()}*", library != "nccl")
    for header, package in PACKAGES.items():
        there = subprocess.run(["gcc", "-E", "-x", "c", "-"], input=f"#include <stdio.h>\n#include <{header}>\n", text=True, capture_output=True,
                               check=False).returncode == 0 if shutil.which("gcc") else True
        findings.add(there, header, f"{header} is missing ({package}): " + ("the bundle has it not; make it anew by tools/bundle" if bundle else
                     "apt install it, or bring tools/bundle's folder, --bundle DIR"), header not in ("jpeglib.h", "png.h"))


def runs_on(kind, code):
    """Whether code for sm_N or compute_N runs on a GPU of sm_M: of the same major version up to M, or compiled anew from PTX. That of
    sm_90a runs on 9.0 alone."""
    number, of_gpu = version_of(kind), version_of(code)
    if kind == code or kind.endswith("a"):
        return kind.rstrip("a") == code
    return number <= of_gpu and (kind.startswith("compute_") or number[0] // 10 == of_gpu[0] // 10)


def check_prebuilt(findings, folder, gpus):
    path = pathlib.Path(folder) / "pack.json"
    pack = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    findings.add(path.exists() or pathlib.Path(folder, "tests").is_dir(), f"binaries in {folder}",
                 f"{folder} has neither pack.json nor tests/: it is no folder of tools/check-gpu pack")
    here = platform.libc_ver()[1] or "0"
    wanted = pack.get("glibc", "0")
    findings.add(version_of(here) >= version_of(wanted), f"glibc {here}", f"the binaries need glibc {wanted}, and this machine has {here}: build them on an older system")
    for row in gpus:
        kinds = pack.get("gencode", [])
        code = "sm_" + row["compute_cap"].replace(".", "")
        findings.add(not kinds or any(runs_on(kind, code) for kind in kinds),
                     f"the binaries are for {row['name']}", f"the binaries are for {', '.join(kinds)}, not for {code}: pack a build of -Dgencode={code}")
    for library in LIBRARIES:
        if pack.get("emulated") or (pathlib.Path(folder) / "tests/support/cuda_emulation").is_dir():
            break
        findings.add(find(library), f"lib{library}: {find(library)}", f"lib{library}.so is neither in the toolkit nor in a wheel: the binaries cannot load it",
                     library != "nccl")


def check_machine(findings):
    emulated = "gVisor" in pathlib.Path("/proc/version").read_text(encoding="utf-8") or "gvisor" in output("dmesg").lower()
    findings.add(not emulated, "the kernel is Linux itself", "this is gVisor: ncu and compute-sanitizer cannot work here; profile and sanitize will say so", False)
    shm, disk = shutil.disk_usage("/dev/shm").free >> 20, shutil.disk_usage(".").free >> 20
    findings.add(shm >= 1024, f"/dev/shm: {shm} MiB free", f"/dev/shm has {shm} MiB free: rank tests and NCCL want 1 GiB", False)
    findings.add(disk >= 4096, f"disk: {disk} MiB free", f"the disk has {disk} MiB free: a build takes 3 GiB", False)
    interfaces = sorted(os.listdir("/sys/class/net")) if os.path.isdir("/sys/class/net") else []
    findings.add(interfaces, f"network interfaces: {', '.join(interfaces)}", "there is no network interface: NCCL needs one, lo will do", False)
    nvml = any(os.path.exists(path) for path in glob.glob("/usr/lib/*/libnvidia-ml.so.1") + glob.glob("/usr/*/nvidia/lib*/libnvidia-ml.so.1")) or (
        "libnvidia-ml.so.1" in output("ldconfig", "-p"))
    findings.add(nvml, "libnvidia-ml.so.1", "libnvidia-ml.so.1 is not to be found: NCCL will refuse (nccl_alone)", False)
    for tool, step in (("compute-sanitizer", "sanitize"), ("ncu", "profile")):
        findings.add(shutil.which(tool), f"{tool}: {shutil.which(tool)}", f"{tool} is not in PATH: the step {step} will be skipped", False)
    torch = output("python3", "-c", "import importlib.util as u; print(bool(u.find_spec('torch')))")
    findings.add(torch == "True", "PyTorch is there", "python3 has no PyTorch: the step torch will be skipped", False)


def commit_of(prebuilt):
    """That of the build: a copy of the files may have another history than the machine that packed it."""
    packed = pathlib.Path(prebuilt, "pack.json") if prebuilt else None
    if packed and packed.exists():
        return json.loads(packed.read_text(encoding="utf-8"))["commit"]
    return output("git", "rev-parse", "--short", "HEAD")


def check(options):
    findings, started = Findings(), time.monotonic()
    options.results.mkdir(parents=True, exist_ok=True)
    (options.results / "nvidia-smi.txt").write_text(output("nvidia-smi", "-q") + "\n" + output("nvidia-smi", "topo", "-m") + "\n", encoding="utf-8")
    gpus = check_gpu(findings)
    if options.prebuilt:
        check_prebuilt(findings, options.prebuilt, gpus)
    else:
        check_build(findings, options.bundle)
    check_machine(findings)
    facts = {"gpus": gpus, "nvcc": output("nvcc", "--version").splitlines()[-2:], "python": platform.python_version(), "kernel": platform.release(),
             "system": output("sh", "-c", ". /etc/os-release; echo $PRETTY_NAME"), "cores": os.cpu_count(), "glibc": platform.libc_ver()[1],
             "commit": commit_of(options.prebuilt), "date": time.strftime("%Y-%m-%d"), "roots": [str(path) for path in roots()],
             "libraries": {library: find(library) for library in LIBRARIES}, "networks": output("ip", "-brief", "address").splitlines(),
             "memory": output("free", "-m").splitlines()[:2], "findings": findings.lines, "seconds": round(time.monotonic() - started, 1)}
    (options.results / "facts.json").write_text(json.dumps(facts, indent=1), encoding="utf-8")
    for line in findings.lines:
        print(f"{'ok  ' if line['good'] else 'STOP' if line['needed'] else 'note'} {line['text']}")
    return 1 if findings.failed() else 0


# ---- loaded files ----

def loaded(build):
    """The files that the build's plugins load, by name; the emulation's one file stands for all."""
    found = {}
    for plugin in ("cuda", "nccl"):
        for name, path in re.findall(r"lib([\w-]+)\.so\S* => (\S+)", output("ldd", str(build / f"libshard/libshard-{plugin}.so"))):
            found.update({library: path for library in LIBRARIES if name in (library, "shard-cuda-emulation")})
    return found


def ask(library, path):
    """What the library says its version is."""
    handle, number = ctypes.CDLL(path), ctypes.c_int(0)
    if library == "cudart":
        driver = ctypes.c_int(0)
        handle.cudaRuntimeGetVersion(ctypes.byref(number))
        handle.cudaDriverGetVersion(ctypes.byref(driver))
        return f"{number.value // 1000}.{number.value % 1000 // 10}, the driver's {driver.value // 1000}.{driver.value % 1000 // 10}"
    if library == "nccl":
        handle.ncclGetVersion(ctypes.byref(number))
        return f"{number.value // 10000}.{number.value // 100 % 100}.{number.value % 100}"
    if library == "cublas":
        parts = [ctypes.c_int(0) for _ in range(3)]
        for kind, part in enumerate(parts):
            handle.cublasGetProperty(kind, ctypes.byref(part))
        return ".".join(str(part.value) for part in parts)
    function = {"cublasLt": "cublasLtGetVersion", "cudnn": "cudnnGetVersion"}[library]
    getattr(handle, function).restype = ctypes.c_size_t
    number = getattr(handle, function)()
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def versions(options):
    found = {}
    for library, path in loaded(options.build).items():
        said = output(sys.executable, __file__, "ask", library, path, limit=60)
        found[library] = {"path": path, "version": said or "not known"}
        print(f"{library}: {said or 'not known'} ({path})")
    (options.results / "versions.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
    return 0


# ---- contexts ----

def make_context(path):
    """Seconds that it took; ends the process where it cannot be made."""
    runtime, started = ctypes.CDLL(path), time.monotonic()
    code = runtime.cudaSetDevice(0) or runtime.cudaFree(None)
    if code:
        runtime.cudaGetErrorString.restype = ctypes.c_char_p
        sys.exit(f"no context: CUDA error {code}: {runtime.cudaGetErrorString(code).decode()}")
    return time.monotonic() - started


def contexts(options):
    def start():
        return subprocess.Popen([sys.executable, __file__, "hold", "0", options.soname], stdout=subprocess.PIPE, text=True)

    def seconds(process):
        text = process.communicate(timeout=120)[0].strip()
        return round(float(text), 3) if text else None
    alone = seconds(start())
    if alone is None:
        return 1
    # It outlives this command, whose output would have no end if it had it open.
    holder = subprocess.Popen([sys.executable, __file__, "hold", "1700", options.soname], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL, start_new_session=True)
    (options.results / "holder.pid").write_text(str(holder.pid), encoding="utf-8")
    time.sleep(alone)
    single = [seconds(start()) for _ in range(3)]
    started = time.monotonic()
    eight = [seconds(process) for process in [start() for _ in range(8)]]
    found = {"with no other": alone, "next to one": single, "8 at once": eight, "8 at once, whole": round(time.monotonic() - started, 3)}
    (options.results / "contexts.json").write_text(json.dumps(found), encoding="utf-8")
    print("a context:", ", ".join(f"{name} {value} s" for name, value in found.items()))
    return 1 if None in single + eight else 0


def hold(options):
    print(f"{make_context(options.soname):.4f}", flush=True)
    time.sleep(options.seconds)
    return 0


def warm(_):
    for library in ("cudart", "cublas", "cublasLt", "cudnn*", "nvrtc*", "nccl"):
        for root in all_roots():
            for folder in library_folders(root):
                for path in glob.glob(f"{folder}/lib{library}.so.*"):
                    with open(path, "rb", buffering=0) as file:
                        while file.read(1 << 24):
                            pass
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, run, arguments in (("check", check, ["results"]), ("roots", lambda _: print(",".join(map(str, roots()))), []), ("warm", warm, []),
                                 ("versions", versions, ["results", "build"]), ("contexts", contexts, ["results", "soname"]),
                                 ("hold", hold, ["seconds", "soname"]), ("library", lambda options: print(find(options.soname)), ["soname"]),
                                 ("folders", lambda _: print(folders()), []), ("ask", lambda options: print(ask(options.soname, options.path)), ["soname", "path"])):
        command = commands.add_parser(name)
        command.set_defaults(run=run)
        for argument in arguments:
            command.add_argument(argument, type={"seconds": float, "soname": str, "path": str}.get(argument, pathlib.Path))
        if name == "check":
            command.add_argument("--bundle", default="")
            command.add_argument("--prebuilt", default="")
    options = parser.parse_args()
    return options.run(options)


if __name__ == "__main__":
    sys.exit(main())
