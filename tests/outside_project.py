#!/usr/bin/env python3
"""Installs Kiln into a scratch prefix, builds a project that lies outside the tree against it, and runs that.

Usage: PROJECT_SOURCE KILN_BUILD KILN"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from run_example import no_device
import boost_path  # noqa: F401


def main():
    source, build, kiln = sys.argv[1:]
    reason = no_device(kiln)
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        run = lambda *command, **more: subprocess.run(command, check=True, **more)
        run("meson", "install", "-C", build, "--no-rebuild", "--quiet",
            env=dict(os.environ, DESTDIR=str(scratch / "root")))
        prefix = scratch / "prefix"
        # The configured prefix is somewhere below DESTDIR: the folder that holds include/kiln.
        found = next((scratch / "root").rglob("include/kiln/kiln.hpp"))
        shutil.move(found.parents[2], prefix)
        library = next(prefix.rglob("libkiln.so")).parent
        for pc in prefix.rglob("kiln*.pc"):
            lines = pc.read_text().splitlines()
            pc.write_text("\n".join(f"prefix={prefix}" if l.startswith("prefix=") else l for l in lines))
        shutil.copytree(source, scratch / "outside")
        environment = dict(os.environ, PKG_CONFIG_PATH=str(library / "pkgconfig"),
                           LD_LIBRARY_PATH=str(library), KILN_CACHE_DIR=str(scratch / "cache"))
        environment.pop("KILN_LLVM_PLUGIN", None)
        run("meson", "setup", scratch / "build", scratch / "outside", env=environment,
            stdout=subprocess.DEVNULL)
        run("ninja", "-C", scratch / "build", env=environment, stdout=subprocess.DEVNULL)
        listed = subprocess.check_output([scratch / "build" / "command", "list"], env=environment, text=True)
        assert "rmsnorm" in listed, listed
        if reason:
            print("built, not run:", reason)
            return 77
        run(scratch / "build" / "scale", scratch / "outside", env=environment, timeout=240)
    return 0


if __name__ == "__main__":
    sys.exit(main())
