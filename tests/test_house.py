"""Holds the house's rules: a folder of libshard/ calls only what stands left of it, a file of a folder
with an order likewise, a vendor's headers appear only in the folder of its backend, programs use public headers, and
the program in standard C calls every macro of these, and random networks have every operation.

Usage: test_house.py SOURCE_ROOT [ARCHIVE...]; the archives hold the library's objects.
"""
import pathlib
import re
import subprocess
import sys

ORDER = ["base", "device", "comm", "tensor", "autograd", "op", "data", "distributed", "parallel", "nn", "models", "optim", "amp", "checkpoint"]
LAST = {"optim", "amp", "checkpoint"}  # these don't call each other, but for amp, which looks at what optim steps by
# Of files, by their stems, and of folders inside a folder: each calls only what stands left of it, or is itself.
FILE_ORDER = {
    "comm": ["function", "reduce", "straggler", "transport", "majority", "culprits", "rendezvous", "backends", "self", "shm",
             "exchange", "mpi", "preflight", "staged", "nccl",
             "registry", "comm", "group", "world", "collective"],
}
# Units of the other folders that call each other: one idea in several files. All else is in an order.
CIRCLES = {
    ("device", "head", "head_prepared", "head_sweep"),
    ("tensor", "leaf", "scope", "tensor"),
}
VENDORS = {  # header: the folder that may include it
    r"(oneapi/)?dnnl": "libshard/device/cpu",
    r"omp\.h": "libshard/device/cpu",
    r"mpi\.h": "libshard/comm/mpi",
    r"nccl": "libshard/comm/nccl",
    r"(cuda|cublas|cudnn)": "libshard/device/cuda",
}
COMMENT_LINES = 10  # of a function in include/
INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]', re.MULTILINE)


def may_call(caller, callee):
    if caller == callee:
        return True
    if caller in LAST and callee in LAST:
        return (caller, callee) == ("amp", "optim")
    return ORDER.index(callee) < ORDER.index(caller)


def file_unit(path):
    """Of libshard/comm/shm/shm_area.c: "comm", "shm"; of libshard/comm/group.c: "comm", "group". Else None."""
    parts = pathlib.PurePath(path).parts
    if len(parts) < 2 or parts[0] not in FILE_ORDER:
        return None
    return parts[0], pathlib.PurePath(parts[1]).stem


def may_call_file(folder, caller, callee):
    return FILE_ORDER[folder].index(callee) <= FILE_ORDER[folder].index(caller)


def check_file_includes(root):
    problems = []
    for folder, order in FILE_ORDER.items():
        for path in sorted((root / "libshard" / folder).glob("**/*.[ch]")):
            relative = path.relative_to(root / "libshard")
            _, caller = file_unit(relative)
            if caller not in order:
                problems.append(f"libshard/{relative}: {caller} has no place in FILE_ORDER")
                continue
            for kind, header in INCLUDE.findall(path.read_text(encoding="utf-8")):
                called_folder, callee = (kind == '"' and file_unit(header)) or (None, None)
                if called_folder == folder and callee in order and not may_call_file(folder, caller, callee):
                    problems.append(f"libshard/{relative}: {caller} may not call {callee} ({header})")
    return problems


def calls_of_files(root, folder):
    """For each unit of a folder, a stem or a folder inside, those whose headers it includes."""
    calls = {}
    for path in sorted((root / "libshard" / folder).glob("**/*.[ch]")):
        caller = pathlib.PurePath(path.relative_to(root / "libshard" / folder).parts[0]).stem
        for kind, header in INCLUDE.findall(path.read_text(encoding="utf-8")):
            parts = pathlib.PurePath(header).parts
            if kind == '"' and parts[0] == folder and len(parts) > 1:
                calls.setdefault(caller, set()).add(pathlib.PurePath(parts[1]).stem)
    return calls


def reached(calls, start):
    found, left = set(), [start]
    while left:
        for callee in calls.get(left.pop(), set()) - found:
            found.add(callee)
            left.append(callee)
    return found


def check_circles(root):
    """Files of a folder do not call each other in a circle, but for those of CIRCLES."""
    found = set()
    for folder in ORDER:
        calls = calls_of_files(root, folder)
        reach = {unit: reached(calls, unit) - {unit} for unit in calls}
        for unit in calls:
            circle = {other for other in reach[unit] if unit in reach.get(other, set())}
            if circle:
                found.add((folder, *sorted(circle | {unit})))
    return [f"libshard/{folder}: {', '.join(units)} call each other" for folder, *units in sorted(found - CIRCLES)] + \
           [f"CIRCLES: {', '.join(units)} of libshard/{folder} do not call each other" for folder, *units in sorted(CIRCLES - found)]


def public_folder(header):
    """Of a header, from shard/ on: shard/nn.h is nn's, shard/models/resnet.h models'."""
    parts = pathlib.PurePath(header).with_suffix("").parts
    name = parts[1] if len(parts) > 1 else None
    return name if name in ORDER else None


def check_includes(root):
    problems = []
    sources = [path for path in sorted(root.glob("libshard/**/*")) if path.suffix in (".c", ".h", ".cu", ".cuh")]
    for path in sources + sorted(root.glob("include/shard/**/*.h")):
        relative = path.relative_to(root)
        folder = relative.parts[1] if relative.parts[0] == "libshard" else public_folder(relative.relative_to("include"))
        for kind, header in INCLUDE.findall(path.read_text(encoding="utf-8")):
            for vendor, home in VENDORS.items():
                if kind == "<" and re.match(vendor, header) and not str(relative).startswith(home):
                    problems.append(f"{relative}: includes <{header}>, which belongs to {home}")
            if header.startswith("shard/"):
                called = public_folder(header)
            elif kind == '"':
                called = header.split("/")[0]
                if called not in ORDER:
                    problems.append(f'{relative}: includes "{header}"; write it from libshard/ on')
                    continue
            else:
                continue
            if folder in ORDER and called in ORDER and not may_call(folder, called):
                problems.append(f"{relative}: {folder} may not call {called} ({header})")
    for path in sorted(root.glob("projects/**/*.[ch]")):
        for kind, header in INCLUDE.findall(path.read_text(encoding="utf-8")):
            if header.split("/")[0] in ORDER:
                problems.append(f"{path.relative_to(root)}: includes the library's inside ({header})")
    return problems


def check_strict_program(root):
    program = (root / "tests/strict_program.c").read_text(encoding="utf-8")
    macros = {name for path in root.glob("include/shard/**/*.h")
              for name in re.findall(r"#define (shard_\w+)\([^)]*\.\.\.\)", path.read_text(encoding="utf-8"))}
    if not macros:
        return ["include/shard: no macro with options was found"]
    return [f"tests/strict_program.c: does not call {name}" for name in sorted(macros) if not re.search(rf"\b{name}\(", program)]


def check_macros(root):
    """docs/stability.md names the function of each macro for which it is not that of the macro's name and _with."""
    macros = {name for path in root.glob("include/shard/**/*.h")
              for name in re.findall(r"^#define (shard_\w+)(?:\(| )", path.read_text(encoding="utf-8"), re.M)}
    functions = set(re.findall(r"^    (shard_\w+);$", (root / "libshard/libshard.map").read_text(encoding="utf-8"), re.M))
    named = re.findall(r"^\| (`.*?) \| `shard_\w+`", (root / "docs/stability.md").read_text(encoding="utf-8"), re.M)
    named = set(re.findall(r"`(shard_\w+)`", " ".join(named)))
    others = {name for name in macros if name + "_with" not in functions}
    return [f"docs/stability.md: the table of macros lacks {name}" for name in sorted(others - named)] + \
           ([] if len(macros) >= 50 and others else [f"include/shard: {len(macros)} macros were found: the pattern is not what it should be"])


def check_options(root):
    """Options go by pointer, begin with their size and have defaults."""
    problems, found = [], 0
    for path in sorted((root / "include").rglob("*.h")):
        header = path.read_text(encoding="utf-8")
        for name, body in re.findall(r"typedef struct (shard_\w+_options) \{(.*?)\n\}", header, re.S):
            found += 1
            if not re.match(r"\s*size_t size;", body):
                problems.append(f"{path.name}: {name} does not begin with its size")
            if f"#define {name.upper()}_INIT " not in header:
                problems.append(f"{path.name}: there is no {name.upper()}_INIT")
        for name in re.findall(r"[(,]\s*(?:const )?(shard_\w+_options) \w+[,)]", header):
            problems.append(f"{path.name}: {name} by value")
    return problems + ([] if found >= 20 else [f"include/shard: {found} structs of options were found: the pattern is not what it should be"])


FIELD = re.compile(r"\s*((?:/\*.*?\*/\s*)?)([^;/]+);[ \t]*((?:/\*.*?\*/)?)", re.S)


def check_defaults(root):
    """The comment of an option names its default where that is a number other than 0, or true."""
    for path in sorted((root / "include").rglob("*.h")):
        header = path.read_text(encoding="utf-8").replace("\\\n", " ")
        for name, body in re.findall(r"struct (shard_\w+_options|shard_schedule) \{(.*?)\n\}", header, re.S):
            values = re.search(rf"#define {name.upper()}_(?:VALUES +|INIT +\{{)(.*?)\}}?\n", header)
            values = re.sub(r"\{.*\}", "0", values.group(1)).split(",")
            comment = ""
            for before, declaration, after in FIELD.findall(body):
                comment = before + after or (comment if comment.startswith("/* these ") else "")
                for declarator in declaration.split(","):
                    value = values.pop(0).strip() if values else "a value that is missing"
                    number = re.fullmatch(r"-?\d[\d.e-]*", value)
                    if (float(value) != 0 if number else value in ("true", "INFINITY")) and not re.search("Default|: as shard_", comment):
                        yield f"{path.name}: the comment of {declarator.split()[-1]} in {name} lacks \"Default: {value}.\""


def check_comments(root):
    """A function's comment is short, and the headings of documents that headers name exist."""
    found = 0
    for path in sorted((root / "include").rglob("*.h")):
        header = path.read_text(encoding="utf-8")
        for comment, name in re.findall(r"^(/\*(?:(?!\*/).)*\*/)[ \t]*\n(?:SHARD_API\b[^;(]*?|#define )(\w+)\(", header, re.M | re.S):
            found += 1
            lines = comment.count("\n") + 1
            if lines > COMMENT_LINES:
                yield f"{path.name}: the comment of {name} has {lines} lines, more than {COMMENT_LINES}: move cases to a document that it names"
        for document, heading in re.findall(r"docs/([\w-]+\.md) \(\"([^\"]+)\"", re.sub(r"\s*\n \*\s*", " ", header)):
            page = root / "docs" / document
            if not page.exists() or not re.search(rf"^#+ {re.escape(heading)}$", page.read_text(encoding="utf-8"), re.M):
                yield f"{path.name}: docs/{document} has no heading \"{heading}\""
    if found < 200:
        yield f"include/shard: {found} comments of functions were found: the pattern is not what it should be"


def check_width(root):
    return [f"{path.name}:{number}: more than 130 columns" for path in sorted((root / "include").rglob("*.h"))
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1) if len(line) > 130]


def check_map(root):
    """The library's map of symbols lists the headers' functions, sorted."""
    functions = set()
    for path in (root / "include").rglob("*.h"):
        header = re.sub(r"/\*.*?\*/", "", path.read_text(encoding="utf-8"), flags=re.S)
        functions |= set(re.findall(r"\bSHARD_API\s+[^;]*?\b(shard_\w+)\(", header))
    listed = re.findall(r"^    (shard_\w+);$", (root / "libshard/libshard.map").read_text(encoding="utf-8"), re.M)
    problems = [f"libshard/libshard.map: {name} is missing" for name in sorted(functions - set(listed))]
    problems += [f"libshard/libshard.map: {name} is in no header" for name in sorted(set(listed) - functions)]
    return problems + ([] if listed == sorted(listed) else ["libshard/libshard.map: the list is not sorted"])


def check_statuses(root):
    """A program can have its compiler find each status that it does not use, also that of a macro."""
    texts = {path.relative_to(root): path.read_text(encoding="utf-8") for path in sorted((root / "include").rglob("*.h"))}
    checked = set(re.findall(r"SHARD_CHECKED shard_status (shard_\w+)\(", "".join(texts.values())))
    if len(checked) < 50:
        return [f"include/shard: {len(checked)} checked functions were found: the pattern is not what it should be"]
    return [f"{path}: {name} returns a status and is not SHARD_CHECKED" for path, text in texts.items()
            for name in re.findall(r"^SHARD_API shard_status (shard_\w+)\(", text, re.M)
            if name not in ("shard_error", "shard_last_status")] + \
           [f"{path}: a macro has the status of {name} without SHARD_GIVEN_STATUS" for path, text in texts.items()
            for macro in re.findall(r"^#define (?:.*\\\n)*.*", text, re.M) if "SHARD_GIVEN_STATUS(" not in macro
            for name in sorted(checked & set(re.findall(r"\bshard_\w+(?=\()", macro)))]


def commented_functions(root):
    """Each public function, by the name that users call, with the comment before it. Titles of sections are left out."""
    for header in sorted((root / "include").rglob("*.h")):
        for comment, rest in re.findall(r"/\*((?:(?!\*/).)*)\*/((?:(?!/\*).)*)", header.read_text(encoding="utf-8"), re.S):
            comment = "" if "----" in comment else re.sub(r"\s*\n\s*\*\s*", " ", comment)
            for name in re.findall(r"(?:SHARD_API\b[^;]*?\b|#define )(shard_\w+)\(", rest):
                yield name if name == "shard_init_with" else re.sub(r"_with$", "", name), comment


# Collective functions without SHARD_FUNCTION, apart from those that destroy, and why.
UNNAMED = {"shard_finalize": "it leaves the job, and does not begin with the preflight check of a collective"}


def check_collective_functions(root):
    """Ranks tell each other the name of the public function that they are in, and its comment says that it is collective."""
    wanted, said, found = set(), set(), set()
    for name, comment in commented_functions(root):
        if "ollective" in comment:
            said.add(name)
        if re.search(r"(?i)(?<!not )\bcollective\b(?= over|:|,| \()", comment) and "Not collective" not in comment:
            wanted.add(name)
    wanted = {name for name in wanted if not name.endswith("_destroy")}
    for source in (root / "libshard").rglob("*.c"):
        found |= set(re.findall(r'SHARD_FUNCTION\("(\w+)"\)', source.read_text(encoding="utf-8")))
    if len(wanted) < 30:
        return [f"include/shard: {len(wanted)} collective functions were found: the pattern is not what it should be"]
    return [f"{name}: its header says that it is collective, but it has no SHARD_FUNCTION" for name in sorted(wanted - found - set(UNNAMED))] + \
           [f"{name}: it has SHARD_FUNCTION, but the comment before it in its header does not say in which case it is collective"
            for name in sorted(found - said)] + \
           [f"{name}: UNNAMED has it, but it has SHARD_FUNCTION or is not collective" for name in sorted(set(UNNAMED) & found | set(UNNAMED) - wanted)]


# Collective functions that are in no table of calls that do not fit together, and where they are tested.
NOT_TABLED = {
    "shard_init": "ranks that do not join: test_joint_failure.c",
    "shard_init_with": "ranks that join with other options: test_exchange.c",
}


def check_collective_calls(root):
    """Each collective function has a call in the table of tests/support/collective_calls.c."""
    found = set()
    for source in (root / "libshard").rglob("*.c"):
        found |= set(re.findall(r'SHARD_FUNCTION\("(\w+)"\)', source.read_text()))
    table = (root / "tests/support/collective_calls.c").read_text()
    called = {"shard_" + name for name in re.findall(r"^    ROW\((\w+),", table, re.MULTILINE)}
    return [f"{name} is collective: add a call to tests/support/collective_calls.c" for name in sorted(found - called - set(NOT_TABLED))] + \
           [f"tests/support/collective_calls.c: {name} has no SHARD_FUNCTION" for name in sorted(called - found)] + \
           [f"{name}: NOT_TABLED has it, but it is in the table or no function" for name in sorted(set(NOT_TABLED) & called | set(NOT_TABLED) - found)]


# Functions of op.h, loss.h and custom_op.h that no random network has, and why.
NOT_DRAWN = {
    "shard_set_autocast": "a mode of the thread: test_autocast_network.c draws networks in it",
    "shard_autocast_dtype": "it reads the mode",
    "shard_count_top_k": "a number on the host, of the local rows",
    "shard_precision_at_k": "a number on the host, of the local rows",
    "shard_custom_op_context": "it reads what the custom operation was given",
    "shard_custom_op_wants_gradient": "inside of a custom operation, of which one is drawn",
    "shard_custom_op_make_gradient": "inside of a custom operation, of which one is drawn",
}


def check_drawn_operations(root):
    """Each operation of op.h, loss.h and custom_op.h is drawn by tests/test_random_networks.c, or listed with the reason why it is not."""
    header = re.sub(r"/\*.*?\*/", "", (root / "include/shard/op.h").read_text() + (root / "include/shard/loss.h").read_text() +
                    (root / "include/shard/custom_op.h").read_text(), flags=re.DOTALL)
    names = {re.sub("_with$", "", name) for name in re.findall(r"^SHARD_API [^;(]*?\b(shard_\w+)\(", header, re.MULTILINE)}
    drawn = "".join((root / "tests" / name).read_text() for name in ("support/network.c", "test_random_networks.c"))
    if len(names) < 80:
        return [f"include/shard: {len(names)} functions were found: the pattern is not what it should be"]
    missing = {name for name in names if not re.search(rf"\b{name}(_with|_with_rank)?\(", drawn)}
    return [f"{name} is in no random network: add a line to the table of tests/support/network.c, or NOT_DRAWN with the reason"
            for name in sorted(missing - set(NOT_DRAWN))] + \
           [f"{name}: NOT_DRAWN has it, but it is drawn or is no function of these headers" for name in sorted(set(NOT_DRAWN) - missing)]


def check_error_statuses(root):
    """A test names the status that it expects: the last error's is always itself."""
    return [f"{path.relative_to(root)}: {call}...): name the status, in check_fails" for path in sorted((root / "tests").rglob("*.c"))
            for call in re.findall(r"check_error\((?!shard_group_rank)(?:shard_|add_group_of)\w*\(", path.read_text(encoding="utf-8"))]


def object_unit(folder, stem):
    """Of the object comm_shm_shm_area.c.o: "shm", which its stem without the folder begins with."""
    units = [unit for unit in FILE_ORDER.get(folder, []) if re.match(rf"{folder}_{unit}(_|\.)", stem)]
    return max(units, key=len, default=None)


def symbols(archive):
    """Folder and file of the object, whether it defines or needs it, name."""
    listing = subprocess.run(["nm", "-A", str(archive)], capture_output=True, text=True, check=True).stdout
    for line in listing.splitlines():
        place, _, rest = line.rpartition(":")
        found = re.match(r"\s*[0-9a-f]*\s+([A-Za-z]) (\w+)$", rest)
        stem = pathlib.PurePath(place.split(":")[-1]).name
        folder = re.split(r"[_.]", stem)[0]
        if found and folder in ORDER:
            yield folder, object_unit(folder, stem), found.group(1), found.group(2)


def check_calls(archives):
    entries = [entry for archive in archives for entry in symbols(archive)]
    home = {name: (folder, unit) for folder, unit, kind, name in entries if kind in "TDRB"}
    if not home:
        return ["no symbols were found: the archives are not what they should be"]
    problems = set()
    for folder, unit, kind, name in entries:
        if kind != "U" or name not in home:
            continue
        called_folder, callee = home[name]
        if not may_call(folder, called_folder):
            problems.add(f"{folder} calls {name}, which is {called_folder}'s")
        if folder == called_folder and folder in FILE_ORDER and not may_call_file(folder, unit, callee):
            problems.add(f"{folder}: {unit} calls {name}, which is {callee}'s and stands after it")
    return sorted(problems)


def main():
    root = pathlib.Path(sys.argv[1])
    problems = (check_includes(root) + check_file_includes(root) + check_circles(root) + check_strict_program(root) +
                check_macros(root) + check_options(root) +
                list(check_defaults(root)) + list(check_comments(root)) + check_width(root) + check_map(root) +
                check_statuses(root) + check_collective_functions(root) + check_collective_calls(root) + check_drawn_operations(root) +
                check_error_statuses(root) + check_calls(sys.argv[2:]))
    print("\n".join(problems) if problems else "the house is in order")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
