#!/usr/bin/env python3
"""The tables of docs/reference.md must be what `kiln reference` prints, each between its two comments.

Usage: KILN DOCUMENT [--write]     with --write the document's tables are replaced"""
import json
import pathlib
import re
import subprocess
import sys

TABLE = re.compile(r"<!-- kiln reference: (.+?) -->\n(.*?)<!-- end -->\n", re.S)


def answer(kiln, *arguments):
    return subprocess.run([kiln, "reference", *arguments], check=True, capture_output=True, text=True).stdout


def main():
    kiln, document = sys.argv[1], pathlib.Path(sys.argv[2])
    tables = dict(TABLE.findall(answer(kiln)))
    text = document.read_text()
    if sys.argv[3:] == ["--write"]:
        document.write_text(TABLE.sub(
            lambda m: f"<!-- kiln reference: {m[1]} -->\n{tables.get(m[1], m[2])}<!-- end -->\n", text))
        return 0
    wrong = []
    for name, rows in json.loads(answer(kiln, "--json")).items():
        if name not in tables or len(rows) != tables[name].count("\n") - 2 or not rows:
            wrong.append(f"kiln reference --json has other rows for '{name}' than kiln reference")
    written = dict(TABLE.findall(text))
    for name in tables.keys() | written.keys():
        if tables.get(name) != written.get(name):
            wrong.append(f"{document}: the table '{name}' is not what kiln reference prints; run\n"
                         f"  {sys.argv[0]} {kiln} {document} --write")
    help_text = subprocess.run([kiln, "--help"], check=True, capture_output=True, text=True).stdout
    for code, meaning in re.findall(r"^\| (\d+) \| (.+?) \|", tables["exit codes"], re.M):
        if f"{code} {meaning}" not in help_text:
            wrong.append(f"kiln --help does not say that exit code {code} means {meaning}")
    print("\n".join(wrong) or f"{len(tables)} tables of {document.name} are up to date")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
