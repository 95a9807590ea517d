"""Holds the includes between the folders of templates/gemm against the table of them in ARCHITECTURE.md: a file may only
include what lies in its folder, in a folder that this one sees, or in one that those see, and no folder sees itself.

  template_arrows.py PROJECT_ROOT
"""
import os
import pathlib
import re
import sys

from arrows import closure

FAMILY = "templates/gemm"
ROW = re.compile(r"^\| `(gemm/\w*/?)` \|([^|]*)\|", re.M)
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.M)


def table(text):
    """What each folder sees, by its path below templates/."""
    return {folder.rstrip("/"): [name.rstrip("/") for name in re.findall(r"`(gemm/\w*/?)`", sees)]
            for folder, sees in ROW.findall(text)}


def included(root, file):
    """The folders below templates/ from which a file of the family includes something of the family, and what."""
    for name in INCLUDE.findall((root / file).read_text()):
        if name.startswith("kiln/"):
            continue
        path = os.path.normpath(name if name.startswith("templates/") else file.parent / name)
        if path.startswith(FAMILY + "/"):
            yield os.path.relpath(os.path.dirname(path), "templates"), path


def wrong_includes(root, sees):
    wrong, count = [], 0
    files = sorted(path.relative_to(root) for path in (root / FAMILY).rglob("*.*") if path.is_file())
    for folder in sorted({os.path.relpath(file.parent, "templates") for file in files} ^ set(sees)):
        wrong.append(f"ARCHITECTURE.md: the table of templates/gemm has {folder} and the tree has not, or the reverse")
    for folder, others in sees.items():
        if any(folder in closure(other, sees) for other in others):
            wrong.append(f"ARCHITECTURE.md: {folder} sees itself")
    for file in files:
        here = os.path.relpath(file.parent, "templates")
        for folder, path in included(root, file):
            count += 1
            if not (root / path).is_file():
                wrong.append(f"{file} includes {path}, which is not there")
            elif here in sees and folder not in closure(here, sees):
                wrong.append(f"{file} includes {path}, but {here} does not see {folder}")
    return wrong, count


def main(root):
    sees = table((root / "ARCHITECTURE.md").read_text())
    wrong, count = wrong_includes(root, sees)
    # The check minds a folder that sees less than it includes.
    for folder in (name for name, others in sees.items() if others):
        if not wrong_includes(root, sees | {folder: []})[0]:
            wrong.append(f"{folder} includes nothing of what it sees, or this check minds nothing")
    print(*wrong, f"{count} includes between files of {len(sees)} folders, {len(wrong)} mistakes", sep="\n")
    return 1 if wrong or not count else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
