#!/usr/bin/env python3
"""Every C++ and CUDA snippet of the README must be, letter for letter, part of an example.

Usage: README EXAMPLES_FOLDER"""
import pathlib
import re
import sys


def main():
    readme, examples = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    texts = [p.read_text() for p in examples.rglob("*") if p.suffix in (".cpp", ".hpp", ".cuh")]
    snippets = re.findall(r"^```(?:cpp|cuda|cuh)\n(.*?)^```", readme.read_text(), re.M | re.S)
    missing = [s for s in snippets if not any(s.rstrip("\n") in text for text in texts)]
    for snippet in missing:
        print("not in any example:\n" + snippet)
    print(f"{len(snippets)} snippets, {len(missing)} not in an example")
    return 0 if snippets and not missing else 1


if __name__ == "__main__":
    sys.exit(main())
