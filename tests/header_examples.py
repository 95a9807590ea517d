#!/usr/bin/env python3
"""Every example in a comment of a public header must be, line for line, part of a source that is compiled.

Usage: INCLUDE_FOLDER SOURCE..."""
import pathlib
import re
import sys

# An example stands in a comment, indented by three spaces or more; a manifest is JSON, not C++.
EXAMPLE = re.compile(r"^\s*//[/!]? {3,}\S")
NOT_CODE = {"manifest.hpp"}


def examples(header):
    """The examples of a header: line number and stripped lines."""
    found, start = [], 0
    lines = header.read_text().splitlines()
    for number, line in enumerate([*lines, ""], 1):
        if EXAMPLE.match(line):
            start = start or number
        elif start:
            found.append((start, [l.strip().lstrip("/!").strip() for l in lines[start - 1:number - 1]]))
            start = 0
    return found


def main():
    include, *sources = map(pathlib.Path, sys.argv[1:])
    text = [line.strip() for source in sources for line in source.read_text().splitlines()]
    count = missing = 0
    for header in sorted(include.glob("kiln/*.hpp")):
        if header.name in NOT_CODE:
            continue
        for number, lines in examples(header):
            count += 1
            if not any(text[i:i + len(lines)] == lines for i in range(len(text))):
                missing += 1
                print(f"{header.name}:{number}: not in {', '.join(s.name for s in sources)}:")
                print("\n".join(lines))
    print(f"{count} examples, {missing} not compiled")
    return 0 if count and not missing else 1


if __name__ == "__main__":
    sys.exit(main())
