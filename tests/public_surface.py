"""Which headers are public: those that users name, and those that these include."""
import re

# What users include: everything at once, the command as a function, and shipped kernels.
NAMED = ("kiln/kiln.hpp", "kiln/cli.hpp", "kiln/kernels/*.hpp")


def includes(file):
    """The headers of Kiln that a file names."""
    return re.findall(r'^\s*#\s*include\s*[<"](kiln/[^">]+)[">]', file.read_text(), re.M)


def public_headers(folders, more=()):
    """By name, the files that are reached in include folders from what users include, or from names in `more`; None
    where there is no such file."""
    found = {}
    left = [str(path.relative_to(folder)) for folder in folders for name in NAMED for path in folder.glob(name)]
    left += more
    while left:
        name = left.pop()
        if name not in found:
            found[name] = next((folder / name for folder in folders if (folder / name).exists()), None)
            left += includes(found[name]) if found[name] else []
    return found
