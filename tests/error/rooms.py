"""Asks the compiler, with the include folders of each room of runtime/, which rooms and folders it finds there:
those that the room sees, those that these see, and no others. ARCHITECTURE.md's table must say the same.

  rooms.py PROJECT_ROOT BUILD_ROOT ROOM=LIBRARY=SEES,... ... -- COMPILER...
"""
import pathlib
import re
import subprocess
import sys

from arrows import FOLDERS, closure
from must_not_compile import include_folders_of

ROW = re.compile(r"^\| `(\w+)/` \| ([\w, ]*) \| \d+ \|", re.M)


def some_header(root, place):
    return next(path for path in sorted((root / place).iterdir()) if path.suffix == ".hpp").relative_to(root)


def found(source, build, headers, compiler):
    """The names of those headers that a source would find if it included them."""
    text = "".join(f'#if __has_include("{path}")\nfound {name}\n#endif\n' for name, path in headers.items())
    done = subprocess.run([*compiler, *include_folders_of(source, build), "-x", "c++", "-E", "-P", "-"], input=text,
                          text=True, capture_output=True, check=True)
    return set(re.findall(r"^found (\w+)$", done.stdout, re.M))


def main():
    split = sys.argv.index("--")
    root, build = (pathlib.Path(a).resolve() for a in sys.argv[1:3])
    compiler = [c for c in sys.argv[split + 1:] if pathlib.Path(c).name != "ccache"]
    sees = {}
    for text in sys.argv[3:split]:
        name, _, below = text.split("=")
        sees[name] = [other for other in below.split(",") if other and not other.endswith(".public")]
    rooms = [name for name in sees if name not in (*FOLDERS, "runtime")]
    headers = {name: some_header(root, name if name in FOLDERS else f"runtime/{name}") for name in [*FOLDERS, *rooms]}
    headers |= {name: some_header(root, name) for name in ("runtime", "templates", "tools")}
    table = {room: set(re.findall(r"\w+", cell)) for room, cell in ROW.findall((root / "ARCHITECTURE.md").read_text())}
    wrong = refused = 0
    for room in rooms:
        source = sorted((root / "runtime" / room).glob("*.cpp"))[0]
        allowed, there = closure(room, sees), found(source, build, headers, compiler)
        refused += len(headers) - len(there)
        listed = set(sees[room]) - set(FOLDERS)
        if there != allowed:
            wrong += 1
            print(f"{room} finds {sorted(there - allowed)}, and not {sorted(allowed - there)}")
        if table.get(room) != listed:
            wrong += 1
            print(f"{room} sees {sorted(listed)}; ARCHITECTURE.md has {sorted(table.get(room, []))}")
    print(f"{len(rooms)} rooms, {refused} includes refused, {wrong} rooms that differ")
    return 1 if wrong or not refused else 0


if __name__ == "__main__":
    sys.exit(main())
