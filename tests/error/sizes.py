"""No source may have more than 500 lines, no header more than 250: what grows over that is several things.
ARCHITECTURE.md's table of rooms says about how many lines each room has.

  sizes.py PROJECT_ROOT
"""
import pathlib
import re
import sys

# A device header (.h) holds the code of a library that is nothing but headers.
LIMITS = {".cpp": 500, ".hpp": 250, ".cuh": 500, ".h": 500}
FOLDERS = ("cache", "codegen", "include", "runtime", "templates", "tools", "tests", "examples")
ROOM = re.compile(r"^\| `(\w+)/` \|[^|]*\| (\d+) \|", re.M)
DRIFT = 0.1  # of a room's lines, before the table must be brought up to date


def rooms_off(root):
    """What is wrong with the table of rooms: one text per room."""
    table = dict(ROOM.findall((root / "ARCHITECTURE.md").read_text()))
    rooms = {path.name for path in (root / "runtime").iterdir() if path.is_dir()}
    off = [f"ARCHITECTURE.md: the table of rooms has {room}/ and runtime/ has not, or the reverse"
           for room in sorted(rooms ^ set(table))]
    for room in sorted(rooms & set(table)):
        lines = sum(len(path.read_text().splitlines()) for path in (root / "runtime" / room).rglob("*.?pp"))
        if abs(lines - int(table[room])) > max(DRIFT * lines, 200):
            off.append(f"ARCHITECTURE.md: runtime/{room}/ has {lines} lines, not about {table[room]}")
    return off


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
    off = rooms_off(pathlib.Path(root))
    print(*off, f"{count} files, {large} too large", sep="\n")
    return 1 if large or off or not count else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
