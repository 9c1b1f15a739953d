#!/usr/bin/env python3
"""Prints unicode_table.h: the ranges of Unicode's letters (general categories L*) and numbers (N*), of this Python's version of
Unicode.

    unicode_table.py > unicode_table.h
"""
import sys
import unicodedata


def find_ranges(kind):
    """[first, last] of each run of code points whose category begins with kind."""
    ranges = []
    for code in range(0x110000):
        if unicodedata.category(chr(code))[0] != kind:
            continue
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return ranges


def print_table(name, ranges):
    print(f"\nstatic const unicode_range {name}[] = {{")
    line = "   "
    for first, last in ranges:
        text = f" {{0x{first:X}, 0x{last:X}}},"
        if len(line) + len(text) > 130:
            print(line)
            line = "   "
        line += text
    print(line + "\n};")


def main():
    print(f"/* Made by unicode_table.py, of Unicode {unicodedata.unidata_version}. */")
    print("#ifndef MINGPT_UNICODE_TABLE_H\n#define MINGPT_UNICODE_TABLE_H\n\n#include <stdint.h>\n")
    print("/* Code points first to last. */\ntypedef struct unicode_range {\n    uint32_t first, last;\n} unicode_range;\n")
    print("/* clang-format off */")
    print_table("unicode_letters", find_ranges("L"))
    print_table("unicode_numbers", find_ranges("N"))
    print("/* clang-format on */\n\n#endif")


if __name__ == "__main__":
    sys.exit(main())
