#!/usr/bin/env python3
"""Every C++ and CUDA snippet of the documents must be, letter for letter, part of an example, and every link
of theirs to a file of the tree, or to a heading of a document, must lead to one. A file that they name by its path,
such as `kiln/error.hpp` or `tests/meson.build`, must be there.

Usage: EXAMPLES_FOLDER DOCUMENT..."""
import pathlib
import re
import sys


FENCED = re.compile(r"^```.*?^```", re.M | re.S)
LINK = re.compile(r"\]\(([^)#:]*)(?:#([^)]*))?\)")
PATH = re.compile(r"`([\w.-]+/[\w./-]*\.\w+)`")


def anchors(document):
    """What links to the headings of a document say behind the #."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", document.read_text()), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def leads_nowhere(document, file, anchor):
    target = document.parent / file if file else document
    return not target.exists() or (anchor and anchor not in anchors(target))


def named_file(root, path):
    """Where a file of the tree lies, by its path or as it is included; nothing for other files."""
    if path.startswith("kiln/") and not path.startswith("kiln/kernels/"):
        return root / "include" / path
    return root / path if (root / path.split("/")[0]).is_dir() else None


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
        prose = FENCED.sub("", text)
        for path in PATH.findall(prose):
            file = named_file(examples.parent, path)
            if file and not file.exists():
                missing += 1
                print(f"{document.name}: there is no {path}")
        for file, anchor in LINK.findall(prose):
            if leads_nowhere(document, file, anchor):
                missing += 1
                print(f"{document.name}: the link to {file}{'#' * bool(anchor)}{anchor} leads nowhere")
    print(f"{count} snippets, {missing} that are not in an example or lead nowhere")
    return 0 if count and not missing else 1


if __name__ == "__main__":
    sys.exit(main())
