"""tools/promises.py on logs that are made here; and whether each test that the table of tests/README.md names is one of meson's.

Usage: check_promises.py SOURCE_ROOT BUILD_ROOT
"""
import fnmatch
import json
import pathlib
import re
import subprocess
import sys
import tempfile

TABLE = """Before.

<!-- promises -->
| promise | how it is tried | tests | cases | failures | skipped |
|---|---|---|---:|---:|---:|
| A save is whole | kills | `crash`, `crash in full` | 1 | 1 | 0 |
| Ranks fail together | exits | `failing_*` | | | |
| Old files load | files | `old` | 7 | 0 | 0 |
| Names are checked | names | `names` | 7 | 0 | 0 |

After | that.
"""
LOGS = [
    [("libshard:unit / crash", "OK", "cases: 14\ncases: 6, of some\n100%: Checks: 2, Failures: 0, Errors: 0\n"),
     ("libshard:system / failing_shm_some", "OK", "no cases: 5\nfine\n"),
     ("libshard:system / failing_mpich_some", "SKIP", ""),
     ("libshard:unit / names", "SKIP", "cases: 3\n")],
    [("libshard:long / crash in full", "FAIL", "cases: 1000\n90%: Checks: 10, Failures: 1, Errors: 0\n"),
     ("libshard:long / failing_shm_all", "TIMEOUT", ""),
     ("libshard:unit / crash more", "OK", "cases: 500\n"),
     ("libshard:unit / crash", "SKIP", "")],
]
PRINTED = """promise                cases  failures  skipped
A save is whole        1,020         1        1
Ranks fail together        2         1        1
Old files load       not run         -        -
Names are checked    not run         -        1
"""
WRITTEN = """| A save is whole | kills | `crash`, `crash in full` | 1,020 | 1 | 1 |
| Ranks fail together | exits | `failing_*` | 2 | 1 | 1 |
| Old files load | files | `old` | not run | - | - |
| Names are checked | names | `names` | not run | - | 1 |

After | that.
"""
# A test that ran in one build may be skipped in another.
MISSING = """a promise was not tried: failing_mpich_some was skipped
a promise was not tried: no test has the name old
a promise was not tried: names was skipped
"""


def run(script, *arguments):
    return subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True, check=False)


def check_script(script):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        table, paths = folder / "table.md", [str(folder / f"{i}.json") for i in range(len(LOGS))]
        table.write_text(TABLE)
        for path, tests in zip(paths, LOGS):
            pathlib.Path(path).write_text("".join(
                json.dumps({"name": name, "result": result, "stdout": output}) + "\n" for name, result, output in tests))
        done = run(script, "--table", table, *paths, str(folder / "missing.json"))
        assert (done.returncode, done.stdout, done.stderr) == (0, PRINTED, ""), done
        assert table.read_text() == TABLE
        done = run(script, "--all", "--table", table, *paths)
        assert (done.returncode, done.stdout) == (1, PRINTED + MISSING), done
        table.write_text(TABLE[:TABLE.index("| Ranks fail")])
        done = run(script, "--all", "--table", table, *paths)
        assert (done.returncode, done.stdout.count("\n")) == (0, 2), done
        table.write_text(TABLE)
        assert run(script, "--write", "--table", table, *paths).stdout == PRINTED
        assert table.read_text() == TABLE[:TABLE.index("| A save")] + WRITTEN, table.read_text()
        for broken in ["", TABLE + TABLE, TABLE.replace(" how it is tried |", ""), TABLE.replace("| kills ", "")]:
            table.write_text(broken)
            done = run(script, "--table", table, *paths)
            assert done.returncode == 1 and done.stderr.startswith("promises.py: "), done


def check_names(source, build):
    """Tests of other builds are those of tests/fuzz."""
    tests = json.loads((build / "meson-info" / "intro-tests.json").read_text())
    names = {test["name"] for test in tests} | set(re.findall(r"test\('(\w+)'", (source / "tests/fuzz/meson.build").read_text()))
    readme = (source / "tests/README.md").read_text()
    rows = [line for line in readme[readme.index("<!-- promises -->"):].split("\n\n")[0].split("\n")[3:]]
    patterns = [pattern for row in rows for pattern in re.findall(r"`([^`]+)`", row.split("|")[3])]
    missing = [pattern for pattern in patterns if not fnmatch.filter(names, pattern)]
    assert rows and all(re.findall(r"`([^`]+)`", row.split("|")[3]) for row in rows), rows
    assert not missing, f"tests/README.md names tests that are not there: {missing}"
    for name in names:
        of = [row.split("|")[1].strip() for row in rows
              if any(fnmatch.fnmatchcase(name, pattern) for pattern in re.findall(r"`([^`]+)`", row.split("|")[3]))]
        assert len(of) <= 1, f"the cases of {name} count for several promises of tests/README.md: {of}"
    return len(rows), len(patterns)


def main():
    source, build = (pathlib.Path(path) for path in sys.argv[1:])
    check_script(source / "tools/promises.py")
    rows, patterns = check_names(source, build)
    print(f"{rows} promises, {patterns} names of tests")


if __name__ == "__main__":
    main()
