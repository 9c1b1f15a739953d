"""Holds docs/glossary.md: older words are found nowhere in comments, messages and documents.

Usage: test_language.py SOURCE_ROOT

Of a C or Python file the comments and the texts of messages are searched, of a shell script the comments, of a document the
whole text. A pattern is for whole words, in any case, and may match across a line break. Of a name only what OLD_NAMES and
OLD_NAMES_IN have is searched, in the code.
"""
import io
import pathlib
import re
import sys
import tokenize

FOLDERS = ["include", "libshard", "projects", "examples", "tools", "docs"]
CODE = ("include/", "libshard/", "projects/", "examples/", "tools/")
DOCUMENTS = ["*.md", "tests/**/*.md"]  # apart from those of the folders
GLOSSARY = "docs/glossary.md"  # it names the older words

# An older word or phrase, and the term of the glossary, or plain words, that stand in its place.
OLD_WORDS = {
    # tensors and placement
    r"everybody": "all ranks",
    r"unplaced": "local",
    r"(dealt|dealing|deals?) (them |it |these )?out|dealt|dealing": "partitioned, split",
    r"(shared|shares|share|sharing) (\w+ ){0,4}out": "partition, split",
    r"alike": "identical, the same, replicated",
    r"(of|is|as|has|have|had|be|are|was|sums?|partial|a|the|no) contributions?|contributions? (of|over|to)": "pending sum, partial",
    r"standing (sums?|contributions?)": "pending sum",
    r"(the|their|its|his|this rank's|each rank's) own (parts?|shards?|pieces?|slices?|size|rows|classes|columns|logits|values?|"
    r"range)|own parts?": "local shard, local size",
    r"the own": "the local, this rank's",
    r"an? own (module|layer|operation|loss|type)|own (modules|layers|operations|losses)": "custom",
    r"(takes?|took|taking|drops?|dropped|holds?|has|have|gives?) (\w+ )?(first )?shares?( of)?": "reference",
    r"(a|the|whose|caller's|maker's|their|its|first) shares? (of the tensor|is taken|are taken|taken|was taken)": "reference",
    r"the caller's shares?": "reference",
    r"let go|lets go of|letting go": "release",
    r"stretch(es)?": "flat range, run",
    r"pieces? of (a |the )?(parameters?|tensors?|weights?|optimizers?|gradients?|buckets?|rows?)": "flat range, local shard, chunk",
    r"slices? of (a |the )?(parameters?|tensors?|weights?)": "flat range",
    r"parameters'? (pieces?|slices?)": "flat range",
    r"kept in (parts|pieces)": "partitioned",
    r"(its|this rank's|each rank's|the rank's|every rank's|a rank's|the members') parts?": "local shard, range",
    r"hand(s|ed|ing)? (it |them |the result |its result )?(on|back|out)": "pass, return",
    r"so-?manyth|so manieth|so-manyeth": "n-th",
    # computation and memory
    r"fillers?": "materialize, evict",
    r"comes? and goes?|came and went": "materialize, evict, stream",
    r"pass(es|ing)? by (in )?(blocks)|values pass(es)? by|rows pass(es)? by": "streamed in row blocks",
    r"gives? back|given back|giving back|gave back": "reshard, evict, free, release",
    r"what is frozen|what was frozen": "frozen parameters",
    r"who (goes|go) on|whoever|who comes|who takes|who looks|who does|who makes|who has|who wants": "name the rank, the caller",
    # communication
    r"carriers?": "device transport",
    r"(is|are|was|were|be|been|has|have|had|being) told|told (the|of|to|on|by|in)|nobody (has been|is|was) told": "notified, received, reported",
    r"tells? (the )?(others|other ranks|each other|all|launcher)|tell (them|it|each)|tells of|there tells": "notify, report, sets",
    r"raises? (an |the )?alarm|alarms?": "abort notice",
    r"seats?": "local rank",
    r"(dis)?agreements?|agreed (on|over|to)|(ranks|they|all|must|all of them) (dis)?agree|agrees? (on|about)": "identical argument, decide together, shard_agree",
    r"(ranks|members|hosts|they|all|ranges|groups) (have )?(meet|met)|meets? (at|those)": "preflight check, exchange",
    r"(the |all |other |each |every |any |a |of |some |its |group's )(group )?members?(?= (of (the|a|this|its) (group|mesh|world)|has|have|must|"
    r"call|calls|enter|enters|tell|tells|that fails?|takes? part))": "rank",
    # plain words
    r"beside|besides": "next to, together with, apart from",
    r"do not mean the same": "the arguments differ",
    r"there is none any ?more|none any more": "stops, removes",
    r"is no (one|thing|number|name|integer)|are no (ones|numbers|names)": "is not a",
    r"nobody('s)?|those who|caller,? who": "no rank, no tensor, none; the ranks that, the caller that",
    r"the same everywhere": "replicated",
    r"settle[sd]?|settling": "decide",
    r"(group|world|mesh)'s members?|(all|every|each|other|same) (its |their |the )?members?|its members'": "rank",
    r"slices? of (a |the |its |this )?(bucket|gradient|matrix|rows?|data|chunk)s?|(its|this rank's|each rank's) slices?": "range",
}
# The same, of comments in one folder. Elsewhere a struct and an object of JSON have members.
OLD_WORDS_IN = {
    "libshard/comm/": {r"(?<![`\[.])members?(?![`\[\]])": "rank"},
    CODE: {r"pieces?": "block, chunk, flat range", r"(host|collectives?) looks?": "poll, check"},
}
# The first words of a sentence of a comment that stand in place of its subject.
OPENINGS = {
    r"who(ever)?\b": "name the subject",
    r"what(ever)?\b": "name the subject",
    r"that which\b": "name the subject",
}
# Names that were given up, in the code.
OLD_NAMES = {
    r"SHARD_REPLICATED": "SHARD_LOCAL",
    r"shard_tensor_(share|drop)": "shard_tensor_ref, shard_tensor_unref",
    r"(?<=->)shares|int shares": "references",
    r"shard_contribution\w*|(?<=->)contribution": "shard_pending_sums",
    r"shard_tensor_set_slice|(?<=->)slice": "shard_tensor_set_flat_range, shard_flat_range_of",
    r"SHARD_TAIL_\w+": "SHARD_LAST_BATCH_...",
    r"shard_(copy|gather|reduce|scatter)(?=\()": "shard_..._to_group, shard_..._from_group",
    r"shard_zero(?=\()": "shard_zero_optimizer",
    r"shard_module_(load|open)(?=\()": "shard_plugin_..., shard_load_module",
    r"shard_agree_on\w*|shard_agreement\w*": "shard_require_identical, shard_identical_lines",
}
# The same in folders, of code without its comments and texts.
OLD_NAMES_IN = {
    CODE: {
        r"(\w*_)?[Pp]ieces?(_\w+)?|(\w*_)?PIECES?(_\w+)?": "block, chunk, flat range",
        r"(\w*_)?settle[ds]?(_\w+)?": "decide, wait, finish",
        r"(\w*_)?(give|gave|given)_back(_\w+)?": "free, evict, release",
        r"(\w*_)?seats?(_\w+)?": "local rank, shard_rank_cores",
        r"(\w*_)?(nobody|everybody)(_\w+)?": "none, all",
    },
    "libshard/": {
        r"(\w*_)?drop(_(?!out)\w+)?": "unref, release, remove, free",
        r"(\w*_)?(told|tells?)(_\w+)?": "report, send, log",
        r"looks?(_at(_\w+)?)?": "check, search, find",
        r"(\w*_)?hand_(on|out|back)(_\w+)?": "pass, return",
        r"meets?|(\w*_)meets?": "preflight check, joint",
    },
    ("libshard/comm/", "libshard/op/", "libshard/distributed/"): {r"(\w*_)?members?(_\w+)?": "rank"},
    ("libshard/comm/", "libshard/device/"): {r"(\w*_)?slices?(_\w+)?": "range, segment, chunk"},
}

TOKEN = re.compile(r'(?P<comment>/\*.*?\*/|//[^\n]*)|(?P<text>"(?:[^"\\\n]|\\.)*")|\'(?:[^\'\\\n]|\\.)*\'', re.S)
INCLUDE = re.compile(r"#\s*include\s*$")
C_SUFFIXES = {".c", ".h", ".cu", ".cuh", ".cpp"}


def joined(text):
    """A comment's words on one line, without the asterisks of its lines."""
    return re.sub(r"\s*\n\s*(\*(?!/)|//|#)?\s*", " ", text)


def line_of(text, position):
    return text.count("\n", 0, position) + 1


def is_script(path):
    """Whether a file without a suffix begins with #! and an interpreter."""
    return path.suffix == "" and path.is_file() and path.read_bytes().startswith(b"#!")


def kind_of(path, text):
    first = text.split("\n", 1)[0]
    if path.suffix in C_SUFFIXES:
        return "c"
    if path.suffix == ".py" or (first.startswith("#!") and "python" in first):
        return "python"
    return "shell" if first.startswith("#!") else "document"


def python_passages(text):
    """Comments, those of lines that follow each other as one, docstrings, and texts of several words."""
    begun, comment, last = 0, "", 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        line = token.start[0]
        if token.type == tokenize.COMMENT:
            whole = token.line.lstrip().startswith("#")
            if comment and not (whole and line == last + 1):
                yield begun, joined(comment), True
                comment = ""
            begun, comment, last = begun if comment else line, comment + "\n" + token.string, line
        elif token.type == tokenize.STRING and " " in token.string:
            yield line, joined(token.string), False
    if comment:
        yield begun, joined(comment), True


def shell_passages(text):
    """Whole lines of comments, those that follow each other as one."""
    for found in re.finditer(r"(^[ \t]*#(?!!).*(\n|$))+", text, re.M):
        yield line_of(text, found.start()), joined("\n" + found.group(0)), True


def passages(path, text):
    """(line, text, is a comment) of each comment and message of a file of code, of each paragraph of a document."""
    kind = kind_of(path, text)
    if kind == "python":
        yield from python_passages(text)
        return
    if kind == "shell":
        yield from shell_passages(text)
        return
    if kind == "document":
        start = 1
        for paragraph in text.split("\n\n"):
            yield start, joined(paragraph), False
            start += paragraph.count("\n") + 2
        return
    for found in TOKEN.finditer(text):
        if found["comment"]:
            yield line_of(text, found.start()), joined(found["comment"]), True
        elif found["text"] and not INCLUDE.search(text, 0, found.start()) and " " in found["text"]:
            yield line_of(text, found.start()), found["text"], False


def sentences(path, passage, is_comment):
    """Those of a comment or a document, also of a table's cells; titles and code are none. The first one of a cell is a phrase."""
    if is_comment:
        return re.split(r"(?<=[.;]) ", passage.strip("/*# -"))
    if path.suffix != ".md" or passage.lstrip().startswith(("#", "```", "<")):
        return []
    if passage.lstrip().startswith("|"):
        return [sentence for cell in passage.split("|") for sentence in re.split(r"(?<=[.?;:]) ", cell.strip())[1:]]
    return re.split(r"(?<=[.?]) | - ", passage)


def check_passages(name, path, text):
    words = [(re.compile(rf"\b(?:{pattern})\b", re.I), False, term) for pattern, term in OLD_WORDS.items()]
    words += [(re.compile(rf"\b(?:{pattern})\b", re.I), True, term)
              for folder, patterns in OLD_WORDS_IN.items() if name.startswith(folder) for pattern, term in patterns.items()]
    openings = [(re.compile(pattern, re.I), term) for pattern, term in OPENINGS.items()]
    for line, passage, is_comment in passages(path, text):
        for compiled, of_comments, term in words:
            found = compiled.search(passage)
            if found and (is_comment or not of_comments):
                yield f'{name}:{line}: "{found.group(0)}": {term}'
        for sentence in sentences(path, passage, is_comment):
            for compiled, term in openings:
                found = compiled.match(sentence.strip("-* "))
                if found:
                    yield f'{name}:{line}: a sentence that begins with "{found.group(0)}": {term}'


def code_of(text):
    """A C file without its comments and texts, with the same lines."""
    return TOKEN.sub(lambda found: "\n" * found.group(0).count("\n"), text)


def check_names(name, path, text):
    if path.suffix not in C_SUFFIXES:
        return
    code = code_of(text)
    searched = [(text, pattern, term) for pattern, term in OLD_NAMES.items()]
    searched += [(code, pattern, term)
                 for folder, patterns in OLD_NAMES_IN.items() if name.startswith(folder) for pattern, term in patterns.items()]
    for where, pattern, term in searched:
        for found in re.finditer(rf"(?<!\w)(?:{pattern})(?!\w)", where):
            yield f"{name}:{line_of(where, found.start())}: {found.group(0)}: {term}"


def files(root):
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if (path.suffix in C_SUFFIXES | {".md", ".py"} and path.is_file()) or is_script(path):
                yield path.relative_to(root).as_posix(), path
    for pattern in DOCUMENTS:
        for path in sorted(root.glob(pattern)):
            yield path.relative_to(root).as_posix(), path


def main():
    root = pathlib.Path(sys.argv[1])
    problems, checked = [], 0
    for name, path in files(root):
        if name == GLOSSARY:
            continue
        text = path.read_text(encoding="utf-8")
        problems += check_passages(name, path, text)
        problems += check_names(name, path, text)
        checked += 1
    if not checked:
        problems.append(f"{root}: no file was found")
    print("\n".join(problems) if problems else f"{checked} files use the terms of {GLOSSARY}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
