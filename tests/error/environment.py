"""Kiln reads environment variables only through kiln/detail/environment.hpp, and every variable of
environment_table.hpp is read somewhere.

  environment.py PROJECT_ROOT
"""
import pathlib
import re
import sys

TABLE = "include/kiln/detail/environment_table.hpp"
READER = "include/kiln/detail/environment.hpp"
FOLDERS = ("cache", "codegen", "include", "runtime", "templates", "tools")
SUFFIXES = (".cpp", ".hpp", ".cuh", ".h")
READS = re.compile(r"\b(?:(?:secure_)?getenv\s*\(|environ\b)")
NAMES = re.compile(r'^\s*\{"([A-Z][A-Z0-9_]*)",', re.M)


def main(root):
    root = pathlib.Path(root)
    names = NAMES.findall((root / TABLE).read_text())
    wrong, others = [], ""
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in SUFFIXES or path in (root / TABLE, root / READER):
                continue
            text = path.read_text()
            others += text
            for number, line in enumerate(text.splitlines(), 1):
                if READS.search(line.split("//")[0]):
                    wrong.append(f"{path.relative_to(root)}:{number}: only {READER} may read the environment")
    wrong += [f"{TABLE}: {name} is read nowhere" for name in names if f'"{name}"' not in others]
    wrong += [f"{TABLE}: {name} stands there twice" for name in set(names) if names.count(name) > 1]
    if not names or not READS.search((root / READER).read_text()):
        wrong.append(f"{TABLE}: this check does not understand the table any more")
    print("\n".join(wrong) or f"{len(names)} variables")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
