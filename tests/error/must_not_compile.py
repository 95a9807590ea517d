"""Compiles one case twice: with MISTAKE defined it must be refused with the expected words, without it
it must be accepted, so that a case cannot pass for another reason.

  must_not_compile.py [--precompiled HEADER.gch] CASE BUILD_ROOT INCLUDE_DIR... -- COMPILER...
  must_not_compile.py --precompile HEADER HEADER.gch DEPFILE INCLUDE_DIR... -- COMPILER...

The second form parses what the cases share, once for all of them (GCC). Where that fails, each case does.

A case says in its first lines:
  // expect: words that the compiler's message contains (all of these lines)
  // like: cache/store.cpp      compile with that file's include folders, not with INCLUDE_DIR
"""
import json
import pathlib
import re
import shlex
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import boost_path  # noqa: E402,F401

COMMON = ["-std=c++20", "-fdiagnostics-color=never"]


def included_by_unity(compiled):
    """The sources that a file of a unity build compiles as one."""
    if not re.search(r"-unity\d+\.cpp$", compiled.name):
        return []
    return [(compiled.parent / path).resolve()
            for path in re.findall(r'^#include\s*[<"](.+)[>"]', compiled.read_text(), re.M)]


def include_folders_of(source, build_root):
    """The -I and -isystem options that the build compiles a file with, as absolute paths."""
    for entry in json.loads((build_root / "compile_commands.json").read_text()):
        folder = pathlib.Path(entry["directory"])
        compiled = (folder / entry["file"]).resolve()
        if compiled != source and source not in included_by_unity(compiled):
            continue
        options, words = [], iter(shlex.split(entry["command"]))
        for word in words:
            if word == "-isystem":
                options += [word, str(folder / next(words))]
            elif word.startswith("-I"):
                options.append("-I" + str(folder / word[2:]))
        return options
    sys.exit(f"{source} is not part of the build in {build_root}")


def precompile(compiler, header, output, depfile, *folders):
    # What the compiler reads instead where it does not take the precompiled form.
    pathlib.Path(output.removesuffix(".gch")).write_text(f'#include "{pathlib.Path(header).resolve()}"\n')
    # Unlike other headers this one is the main file.
    done = subprocess.run([*compiler, *COMMON, "-w", "-x", "c++-header", *(f"-I{f}" for f in folders),
                           "-MD", "-MF", depfile, "-MQ", output, header, "-o", output], capture_output=True)
    if done.returncode != 0:
        pathlib.Path(output).write_bytes(b"")
        pathlib.Path(depfile).write_text("")
    sys.exit(0)


def main():
    split = sys.argv.index("--")
    arguments = sys.argv[1:split]
    compiler = [c for c in sys.argv[split + 1:] if pathlib.Path(c).name != "ccache"]
    if arguments[0] == "--precompile":
        precompile(compiler, *arguments[1:])
    shared = []
    if arguments[0] == "--precompiled":
        shared = ["-include", arguments[1].removesuffix(".gch")]
        arguments = arguments[2:]
    case, build_root, *folders = [pathlib.Path(a) for a in arguments]
    head = {"expect": [], "like": []}
    for line in case.read_text().splitlines():
        for word, values in head.items():
            if line.startswith(f"// {word}: "):
                values.append(line.removeprefix(f"// {word}: ").strip())
    if not head["expect"]:
        sys.exit(f"{case} does not say what to expect")
    if head["like"]:
        source_root = pathlib.Path(__file__).resolve().parents[2]
        options = include_folders_of(source_root / head["like"][0], build_root)
    else:
        options = [*shared, *(f"-I{folder}" for folder in folders)]

    def compile_it(*more):
        return subprocess.run([*compiler, *COMMON, "-fsyntax-only", "-x", "c++", *options, *more,
                               str(case)], text=True, capture_output=True)

    right = compile_it()
    if right.returncode != 0:
        sys.exit(f"{case.name}: refused without the mistake:\n{right.stderr}")
    wrong = compile_it("-DMISTAKE")
    if wrong.returncode == 0:
        sys.exit(f"{case.name}: the mistake was accepted")
    missing = [words for words in head["expect"] if words not in wrong.stderr]
    if missing:
        sys.exit(f"{case.name}: the message lacks {missing}:\n{wrong.stderr}")
    print(f"{case.name}: refused as expected")


if __name__ == "__main__":
    main()
