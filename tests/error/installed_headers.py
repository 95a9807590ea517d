#!/usr/bin/env python3
"""What is installed are the headers that users include and those that these need: no more and no fewer. kiln/kiln.hpp
includes all that users name, and nothing of kiln/detail; neither do documents and examples.

Usage: SOURCE_TREE BUILD_TREE"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from public_surface import includes, public_headers  # noqa: E402

# A row of the table of headers that kernels may include.
FOR_KERNELS = re.compile(r"^\| `(kiln/[\w/]+\.cuh)`", re.M)
INSIDE = re.compile(r"\bkiln/detail/|\bdetail::")


def compare(include, templates, for_kernels):
    """What is wrong with the headers below `include`, of which kernels use those that `templates` name, and `for_kernels`."""
    more = [*for_kernels, *(name for file in templates for name in includes(file))]
    needed = public_headers([include], more)
    installed = {str(p.relative_to(include)) for p in (include / "kiln").rglob("*") if p.is_file()}
    failures = [f"{name} is needed, but not installed" for name, path in needed.items() if not path]
    failures += [f"{name} is installed, but no header that users include needs it" for name in installed - needed.keys()]
    direct = set(includes(include / "kiln/kiln.hpp"))
    named = {name for name in installed if name.count("/") == 1 and name.endswith(".hpp")} - {"kiln/kiln.hpp", "kiln/cli.hpp"}
    failures += [f"kiln/kiln.hpp does not include {name}" for name in named - direct]
    failures += [f"kiln/kiln.hpp includes {name}" for name in direct - named]
    return len(installed), sorted(failures)


def check_itself(include, templates, for_kernels):
    """A header too many and one too few are seen."""
    stray, needed = include / "kiln/detail/stray.hpp", include / "kiln/detail/handle_core.hpp"
    stray.write_text("#pragma once\n")
    aside = needed.rename(needed.with_suffix(".aside"))
    _, failures = compare(include, templates, for_kernels)
    stray.unlink()
    aside.rename(needed)
    told = "\n".join(failures)
    for name in (stray.name, needed.name):
        assert name in told, f"the check does not mind {name}: {failures}"


def main():
    source, build = (pathlib.Path(a) for a in sys.argv[1:])
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run(["meson", "install", "-C", build, "--no-rebuild", "--quiet", "--tags", "devel"], check=True,
                       stdout=subprocess.DEVNULL, env=dict(os.environ, DESTDIR=scratch))
        include = next(pathlib.Path(scratch).rglob("include/kiln/kiln.hpp")).parents[1]
        templates = [p for p in (source / "templates").rglob("*") if p.suffix == ".cuh"]
        for_kernels = FOR_KERNELS.findall((source / "docs/headers.md").read_text())
        count, failures = compare(include, templates, for_kernels)
        check_itself(include, templates, for_kernels)
    documents = [source / "README.md", *(source / "docs").rglob("*.md"), *(source / "examples").rglob("*.?pp")]
    for document in documents:
        failures += [f"{document.relative_to(source)} names {name}" for name in INSIDE.findall(document.read_text())]
    if failures or count < 40 or len(documents) < 10:
        sys.exit("\n".join(failures) or f"only {count} headers, {len(documents)} documents")
    print(f"{count} headers installed, all of them needed; {len(documents)} documents and examples name nothing inside")


main()
