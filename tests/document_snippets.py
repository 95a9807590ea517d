#!/usr/bin/env python3
"""Every C++ and CUDA snippet of the documents must be, letter for letter, part of an example, and every link
of theirs to a file of the tree must lead to one.

Usage: EXAMPLES_FOLDER DOCUMENT..."""
import pathlib
import re
import sys


def main():
    examples, documents = pathlib.Path(sys.argv[1]), [pathlib.Path(d) for d in sys.argv[2:]]
    texts = [p.read_text() for p in examples.rglob("*") if p.suffix in (".cpp", ".hpp", ".cuh")]
    count = missing = 0
    for document in documents:
        text = document.read_text()
        for snippet in re.findall(r"^```(?:cpp|cuda|cuh)\n(.*?)^```", text, re.M | re.S):
            count += 1
            if not any(snippet.rstrip("\n") in example for example in texts):
                missing += 1
                print(f"{document.name}: not in any example:\n{snippet}")
        prose = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", prose):
            if not (document.parent / target).exists():
                missing += 1
                print(f"{document.name}: the link to {target} leads nowhere")
    print(f"{count} snippets, {missing} that are not in an example or lead nowhere")
    return 0 if count and not missing else 1


if __name__ == "__main__":
    sys.exit(main())
