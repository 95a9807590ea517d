"""No source may have more than 500 lines, no header more than 250: what grows over that is several things.

  sizes.py PROJECT_ROOT
"""
import pathlib
import sys

# A device header (.h) holds the code of a library that is nothing but headers.
LIMITS = {".cpp": 500, ".hpp": 250, ".cuh": 500, ".h": 500}
FOLDERS = ("cache", "codegen", "include", "runtime", "templates", "tools", "tests", "examples")


def main(root):
    count = large = 0
    for folder in FOLDERS:
        for path in sorted((pathlib.Path(root) / folder).rglob("*")):
            limit = LIMITS.get(path.suffix)
            if limit is None or not path.is_file():
                continue
            count += 1
            lines = len(path.read_text().splitlines())
            if lines > limit:
                large += 1
                print(f"{path.relative_to(root)}: {lines} lines, at most {limit} are allowed")
    print(f"{count} files, {large} too large")
    return 1 if large or not count else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
