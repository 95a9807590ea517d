"""An installation of Kiln to try things on: for tests that use it as users do."""
import os
import pathlib
import shutil
import subprocess


def run(*command, **more):
    return subprocess.run([str(c) for c in command], check=True, text=True, **more)


def output(*command, **more):
    return run(*command, stdout=subprocess.PIPE, **more).stdout


def install(build, scratch):
    """The prefix, where it was never configured to be."""
    run("meson", "install", "-C", build, "--no-rebuild", "--quiet", "--strip",
        env=dict(os.environ, DESTDIR=str(scratch / "root")))
    header = next((scratch / "root").rglob("include/kiln/kiln.hpp"))
    prefix = scratch / "moved" / "kiln"
    prefix.parent.mkdir()
    shutil.move(header.parents[2], prefix)
    shutil.rmtree(scratch / "root")
    return prefix


def library_folder(prefix):
    return next(prefix.rglob("libkiln.so")).parent


def environment(prefix, cache):
    """With nothing of this process's that says where Kiln is, but for the CUDA toolkit."""
    kept = {k: v for k, v in os.environ.items()
            if not k.startswith("KILN_") and k != "LD_LIBRARY_PATH" or k == "KILN_CUDA_ROOT"}
    return kept | {"PKG_CONFIG_PATH": str(library_folder(prefix) / "pkgconfig"), "KILN_CACHE_DIR": str(cache)}


def compiler():
    return os.environ.get("CXX", "c++").split()
