"""Holds cache/, codegen/ and the rooms of runtime/ against the arrows between them, as the linker sees
them: a room may only need symbols that it, a room that it sees, or none of them defines. (Includes are held
by include roots; but a public header's function may be defined in any room.)

What cache/ and codegen/ define outside of the namespaces kiln::cache and kiln::codegen is of public headers:
"cache.public" and "codegen.public", which others may see without the rest.

  arrows.py NM ROOM=LIBRARY=SEES,... ...
  arrows.py NM --refused ROOM=LIBRARY ROOM=LIBRARY=SEES,... ...

The second form takes another library for a part of ROOM, and passes if just this library is against the
arrows.
"""
import subprocess
import sys

FOLDERS = ("cache", "codegen")


def symbols(nm, library):
    """The names that a library defines for others, and those that it needs."""
    defined, needed = set(), set()
    for line in subprocess.check_output([nm, "--format=posix", library], text=True).splitlines():
        words = line.split()
        if len(words) < 2:
            continue
        name, kind = words[0], words[1]
        if kind == "U":
            needed.add(name)
        elif kind in "TDBR":  # not what every object has its own copy of
            defined.add(name)
    return defined, needed - defined


def closure(room, sees):
    found, left = set(), [room]
    while left:
        room = left.pop()
        if room not in found:
            found.add(room)
            left += sees[room]
    return found


def readable(names):
    return subprocess.run(["c++filt"], input="\n".join(names), text=True, capture_output=True).stdout.splitlines()


def homes(defined):
    """Where each symbol is defined: a room, or a folder's own or public part."""
    home = {}
    for room, names in defined.items():
        names = sorted(names)
        for name, shown in zip(names, readable(names) if room in FOLDERS else names):
            home[name] = room if room not in FOLDERS or f"kiln::{room}::" in shown else f"{room}.public"
    return home


def against(room, needed, home, sees):
    """The symbols that a room needs although it does not see the rooms that define them."""
    allowed = closure(room, sees)
    return sorted(name for name in needed if name in home and home[name] not in allowed)


def main(nm, *rooms):
    refused = None
    if rooms[0] == "--refused":
        refused, rooms = rooms[1], rooms[2:]
    sees, defined, needed = {}, {}, {}
    for text in rooms:
        room, library, below = text.split("=")
        sees[room] = [name for name in below.split(",") if name]
        defined[room], needed[room] = symbols(nm, library)
    for folder in FOLDERS:
        sees[f"{folder}.public"] = list(sees[folder])
        sees[folder].append(f"{folder}.public")
    home = homes(defined)
    broken = 0
    for room, names in needed.items():
        wrong = against(room, names, home, sees)
        broken += len(wrong)
        for name, shown in zip(wrong, readable(wrong)):
            print(f"{room} does not see {home[name]}, but needs {shown}")
    print(f"{len(home)} symbols of {len(rooms)} rooms, {broken} against the arrows")
    if refused:
        room, library = refused.split("=")
        wrong = against(room, symbols(nm, library)[1], home, sees)
        print(f"refused in {room}: {readable(wrong)}")
        return 1 if broken or not wrong else 0
    return 1 if broken or not home else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
