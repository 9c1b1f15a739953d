"""For Doxygen: a header whose comments are plain C, with comments as Doxygen reads them. docs/Doxyfile.in calls it.

    the first comment of a file         documents the file
    a comment above declarations        documents each of them, up to an empty line or the next comment
    a comment behind a field            documents the field
    /* ---- a heading ---- */           stays as it is
    lines indented by three or more     code

A comment above a struct of options also documents the macro and the function below it. A field, a type, a constant or an
enumerator without a comment has an empty text, as its name says what it is. A function, or a macro with arguments,
without a comment is left without one, and Doxygen stops with a warning.

Usage: doxygen_filter.py HEADER
"""
import re
import sys

SPECIAL = re.compile(r"([\\@<>#%&\"$])")
HEADING = re.compile(r"/\*\s*----")
HELPER = re.compile(r"#define (\w+(_IN|_OF|_H|_)|SHARD_(JOIN|WITH|GIVEN|GIVEN_STATUS|API|PRINTF|OPTIONS|PARAMETERS|OF_PARAMETERS|"
                    r"ARGUMENTS|ARGUMENT_OPTIONS|BEGIN_C|END_C))\b")
NOTHING = "&nbsp;"
NAMED = re.compile(r"#define SHARD_[A-Z0-9_]+(?!\w|\()|typedef (struct|enum) \w+ (\w+;|\{)|struct \w+ \{")
SEVERAL = re.compile(r"(\s+(?:const )?\w+ )(\w+(?:, \w+)+);(\s*/\*.*\*/)?\s*$", re.DOTALL)


def words(comment):
    """The lines of a comment without its frame."""
    inner = comment[2:-2].split("\n")
    lines = [inner[0].strip()] + [re.sub(r"^\s*\* ?", "", line).rstrip() for line in inner[1:]]
    while lines and not lines[0].strip():
        lines.pop(0)
    while lines and not lines[-1].strip():
        lines.pop()
    return lines


def text_of(comment):
    out, code = [], False
    for line in words(comment):
        if bool(re.match(r" {3}", line)) != code and line.strip():
            code = not code
            out.append("@code{.unparsed}" if code else "@endcode")
        out.append(line if code else SPECIAL.sub(r"\\\1", line))
    return "\n".join(out + (["@endcode"] if code else []))


def doc(comment, opening="/**"):
    return f"{opening} {text_of(comment)} */" if comment else f"{opening} {NOTHING} */"


def split(source):
    """Comments that begin a line, and lines, in order."""
    at, parts = 0, []
    while at < len(source):
        begin = re.compile(r"[ \t]*(/\*.*?\*/)[ \t]*\n", re.DOTALL).match(source, at)
        if begin:
            parts.append(("comment", begin.group(1)))
            at = begin.end()
            continue
        end = source.find("\n", at)
        line = source[at:end + 1] if end >= 0 else source[at:]
        if "/*" in line and "*/" not in line:  # a comment behind code that goes on
            end = source.index("*/", at) + 2
            end = source.find("\n", end)
            line = source[at:end + 1]
        parts.append(("line", line))
        at += len(line)
    return parts


def behind(line, inside):
    """A field or an enumerator with the comment behind it."""
    several = inside and SEVERAL.match(line)
    if several:
        text = several.group(3).strip() if several.group(3) else None
        return "".join(f"{several.group(1)}{name}; {doc(text, '/**<')}\n" for name in several.group(2).split(", "))
    found = re.match(r"(.*?[;,{]?)\s*(/\*.*\*/)\s*$", line, re.DOTALL)
    if found and inside:
        return f"{found.group(1)} {doc(found.group(2), '/**<')}\n"
    if inside and re.match(r"\s+\w[^(]*[;,]\s*$|\s+\w+\s*$|\s+\w+ = [^;]+$|.*\(\*\w+\)\(.*;\s*$", line):
        return f"{line.rstrip()} {doc(None, '/**<')}\n"
    return line


class Filter:
    def __init__(self):
        self.out, self.pending, self.first, self.depth, self.last_blank = [], None, True, 0, True
        self.open, self.continued = 0, False

    def comment(self, text):
        if self.first:
            self.first = False
            self.out.append(f"/** @file\n{text_of(text)} */\n")
        elif not HEADING.match(text):
            self.pending = text

    def starts_declaration(self, line):
        """Whether a declaration, a macro or a field begins here."""
        stripped = line.strip()
        if not stripped or stripped[0] in "}{" or self.continued:
            return False
        if self.open:
            return False
        return not stripped.startswith("#") or stripped.startswith("#define")

    def line(self, line):
        if not line.strip():
            if not self.depth:
                self.pending = None
            self.out.append(line)
            return
        if self.starts_declaration(line):
            if HELPER.match(line):
                self.out.append("/** @cond */\n" + line)
                self.helper = True
                self.follow(line)
                return
            if self.pending:
                self.out.append(doc(self.pending) + "\n")
                if self.depth:
                    self.pending = None
                    self.out.append(line)
                    self.follow(line)
                    return
            elif not self.depth and NAMED.match(line):
                self.out.append(f"/** {NOTHING} */\n")
        self.out.append(behind(line, self.depth > 0 and not self.open))
        self.follow(line)

    helper, outer = False, None

    def follow(self, line):
        code = re.sub(r"/\*.*?\*/|\"[^\"]*\"", "", line, flags=re.DOTALL)
        self.continued = code.rstrip().endswith("\\")
        if not code.lstrip().startswith("#") and not self.helper and "extern \"C\"" not in line:
            braces = code.count("{") - code.count("}")
            if not self.depth and braces > 0:
                self.outer, self.pending = self.pending, None
            self.depth = max(0, self.depth + braces)
            self.open = max(0, self.open + code.count("(") - code.count(")"))
            if not self.depth and braces < 0:
                self.pending = self.outer
        if self.helper and not self.continued:
            self.out.append("/** @endcond */\n")
            self.helper = False


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        source = file.read()
    result = Filter()
    for kind, text in split(source):
        if kind == "comment":
            result.comment(text)
        else:
            result.line(text)
    sys.stdout.write("".join(result.out))


if __name__ == "__main__":
    main()
