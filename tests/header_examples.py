#!/usr/bin/env python3
"""Every example in a comment of a header that users include must be, line for line, part of a source that is compiled.

Usage: PROJECT_ROOT SOURCE..."""
import pathlib
import re
import sys

# An example stands in a comment, indented by three spaces or more. So do equations and tables in the headers of
# shipped kernels: there an example has a line that ends as C++ does.
EXAMPLE = re.compile(r"^\s*//[/!]? {3,}\S")
CODE = re.compile(r"(\);|[{}])\s*(//.*)?$")
# A manifest is JSON, and no user includes the other.
NOT_EXAMPLES = {"manifest.hpp", "key_builder.hpp"}


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


def all_examples(root):
    """Those of the public headers and of the shipped kernels' headers: where, and its lines."""
    for folder in ("include/kiln", "templates"):
        for header in sorted(path for path in (root / folder).rglob("*") if path.suffix in (".hpp", ".cuh")):
            for number, lines in examples(header):
                is_code = folder != "templates" or any(CODE.search(line) for line in lines)
                if is_code and header.name not in NOT_EXAMPLES:
                    yield f"{header.relative_to(root)}:{number}", lines


def main():
    root, *sources = map(pathlib.Path, sys.argv[1:])
    text = [line.strip() for source in sources for line in source.read_text().splitlines()]
    count = missing = 0
    for where, lines in all_examples(root):
        count += 1
        if not any(text[i:i + len(lines)] == lines for i in range(len(text))):
            missing += 1
            print(f"{where}: not in {', '.join(s.name for s in sources)}:")
            print("\n".join(lines))
    print(f"{count} examples, {missing} not compiled")
    return 0 if count and not missing else 1


if __name__ == "__main__":
    sys.exit(main())
