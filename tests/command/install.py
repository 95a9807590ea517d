#!/usr/bin/env python3
"""Installs Kiln, moves the prefix, and uses it there as a user would: the command, and a project outside the tree
through pkg-config, Meson and CMake. Nothing installed may name or open the tree that it was built in.

Usage: OUTSIDE_PROJECT KILN_SOURCE KILN_BUILD KILN"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import boost_path  # noqa: E402,F401
from installed import compiler, environment, install, library_folder, output, run  # noqa: E402
from run_example import no_device  # noqa: E402


def check_files(prefix, trees):
    files = [p for p in prefix.rglob("*") if p.is_file()]
    for path in files:
        content = path.read_bytes()
        named = [tree for tree in trees if os.fsencode(tree) in content]
        assert not named, f"{path.relative_to(prefix)} names {named}"
    names = {p.name for p in files}
    for name in ("kiln", "kiln-compiler", "kiln-worker", "LICENSE", "version.hpp", "kiln.pc", "kiln-cli.pc", "kiln-config.cmake", "gemm.cuh"):
        assert name in names, f"{name} is not installed"
    assert "kiln-build-tree" not in names
    return len(files)


INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.M)


class Prefix:
    def __init__(self, prefix, trees, scratch):
        self.prefix, self.trees = prefix, trees
        self.library = library_folder(prefix)
        self.templates = prefix / "share" / "kiln" / "templates"
        self.environment = environment(prefix, scratch / "cache")

    def kiln(self, *arguments, **more):
        return subprocess.run([self.prefix / "bin" / "kiln", *arguments], env=self.environment | more, text=True,
                              capture_output=True, timeout=240)

    def check_templates(self, source):
        """Every device half is installed, and with the templates and the headers all that they include."""
        missing = [half for half in source.rglob("*.cuh") if not (self.templates / half.relative_to(source)).exists()]
        include, kernels = self.prefix / "include", self.prefix / "include" / "kiln" / "kernels"
        files = [p for folder in (self.templates, kernels) for p in folder.rglob("*.*") if p.is_file()]
        missing += [f"{name}, which {file.name} includes" for file in files for name in INCLUDE.findall(file.read_text())
                    if not ((include if name.startswith("kiln/") else file.parent) / name).exists()]
        assert not missing, missing
        return len(files)

    def check_command(self, runs):
        listed = self.kiln("list")
        assert listed.returncode == 0 and "rmsnorm" in listed.stdout, listed
        assert self.kiln("doctor", "--json").returncode == 0
        tune = ("tune", "vector_add", "--problem", "n=4096", "--device", "host", "--evaluations", "2", "--json")
        template = self.templates / "elementwise" / "vector_add.cuh"
        assert template.exists(), "the templates are not in a folder per family"
        if runs:
            # Where the loader was, plugins included.
            tuned = self.kiln(*tune, LD_DEBUG="files")
            assert tuned.returncode == 0, tuned.stderr[-2000:]
            assert json.loads(tuned.stdout)["winner"], tuned.stdout
            assert "libkiln_llvm.so" in tuned.stderr, "the loader's log does not show plugins"
            for tree in self.trees:
                assert tree not in tuned.stderr, f"the loader was in {tree}"
        # What is taken away is missing: there is no other place that it would come from.
        plugin = self.library / "libkiln_llvm.so"
        for missing in (template, plugin) if plugin.exists() else (template,):
            aside = missing.rename(missing.with_name("aside"))
            failed = self.kiln(*tune, KILN_CACHE_DIR=str(self.prefix / "empty"))
            aside.rename(missing)
            assert failed.returncode != 0, f"{missing.name} was found elsewhere"
            for tree in self.trees:
                assert tree not in failed.stderr + failed.stdout, failed.stderr

    def check_processes(self):
        """What compiles in processes of its own was moved along; without it the command compiles by itself."""
        def component():
            return json.loads(self.kiln("doctor", "--json", KILN_COMPILE_PROCESSES="2").stdout)["components"]["compile"]

        def compiled(name):
            made = self.kiln("precompile", "vector_add", "--problem", "n=4096", "--arch", "host", "-o",
                             str(self.prefix / name), KILN_COMPILE_PROCESSES="2", KILN_CACHE_DIR=str(self.prefix / "empty"))
            assert made.returncode == 0, made
            shutil.rmtree(self.prefix / "empty")
            return (self.prefix / name).read_bytes()

        program = self.prefix / "libexec" / "kiln" / "kiln-compiler"
        found = component()
        assert found["available"] and found["detail"] == str(program), found
        bundle = compiled("with")
        # One that leaves a trace shows that it is started.
        aside = program.rename(program.with_name("aside"))
        program.write_text(f"#!/bin/sh\ntouch {self.prefix}/started\nexec {aside} \"$@\"\n")
        program.chmod(0o755)
        assert compiled("traced") == bundle and (self.prefix / "started").exists(), "kiln-compiler was not started"
        program.write_text("#!/bin/sh\nexit 3\n")
        broken = component()
        assert not broken["available"] and "exit code 3" in broken["problem"], broken
        assert compiled("broken") == bundle
        program.unlink()
        lacking = component()
        assert not lacking["available"] and str(program) in lacking["problem"], lacking
        assert compiled("without") == bundle
        aside.rename(program)

    def check_project(self, how, folder, source, runs):
        """The outside project's programs, built in `folder`."""
        environment = self.environment | {"LD_LIBRARY_PATH": str(self.library)}
        listed = output(folder / "command", "list", env=environment)
        assert "rmsnorm" in listed, listed
        if runs and (folder / "scale").exists():
            run(folder / "scale", source, env=environment, timeout=240)
            # Kiln's exceptions are caught in the program.
            failed = subprocess.run([folder / "scale", source / "nowhere"], env=environment, text=True, capture_output=True)
            assert failed.returncode == 1 and "nowhere" in failed.stderr, failed
        print(f"{how}: built" + (" and run" if runs else ""), flush=True)


def main():
    source, kiln_source, build, kiln = sys.argv[1:]
    reason = no_device(kiln)
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        trees = sorted({os.path.realpath(kiln_source), os.path.realpath(build)})
        moved = Prefix(install(build, scratch), trees, scratch)
        print(check_files(moved.prefix, trees), "files installed", flush=True)
        print(moved.check_templates(pathlib.Path(kiln_source) / "templates"), "of them of templates", flush=True)
        moved.check_command(not reason)
        if not reason:
            moved.check_processes()

        outside = scratch / "outside"
        shutil.copytree(source, outside)
        env, quiet = moved.environment, {"stdout": subprocess.DEVNULL, "env": moved.environment}
        flags = output("pkg-config", "--cflags", "--libs", "kiln-cli", env=env).split()
        assert all(str(moved.prefix) in f for f in flags if f.startswith(("-I", "-L"))), flags
        (scratch / "pkg-config").mkdir()
        run(*compiler(), "-std=c++20", outside / "command.cpp", "-o", scratch / "pkg-config" / "command", *flags, env=env)
        moved.check_project("pkg-config", scratch / "pkg-config", outside, False)

        run("meson", "setup", scratch / "meson", outside, "-Doptimization=0", **quiet)
        run("ninja", "-C", scratch / "meson", **quiet)
        moved.check_project("Meson", scratch / "meson", outside, not reason)

        if shutil.which("cmake"):
            # Hidden visibility: a user's choice, under which Kiln's exceptions are still caught.
            run("cmake", "-S", outside, "-B", scratch / "cmake", f"-DCMAKE_PREFIX_PATH={moved.prefix}",
                "-DCMAKE_CXX_VISIBILITY_PRESET=hidden", "-G", "Ninja", **quiet)
            run("ninja", "-C", scratch / "cmake", **quiet)
            moved.check_project("CMake", scratch / "cmake", outside, not reason)
        else:
            print("CMake: skipped: cmake is not installed")
    if reason:
        print("skipped: built, but not run:", reason)
        return 77
    return 0


if __name__ == "__main__":
    sys.exit(main())
