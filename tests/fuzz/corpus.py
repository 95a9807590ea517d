"""Fuzz inputs between the tree, where everything is text, and libFuzzer, which wants them as they are.

  corpus.py unpack FOLDER TO    text to inputs: .hex files are decoded, others copied
  corpus.py pack FOLDER TO      inputs to text: as they are where a person can read them, else .hex

A .hex file holds hexadecimal digits, `XX*N` for N times the same byte, and `#` comments.
"""
import hashlib
import pathlib
import re
import sys


def from_hex(text):
    out = bytearray()
    for word in re.sub(r"#.*", "", text).split():
        for digits, count in re.findall(r"([0-9a-f]{2})(?:\*(\d+))?", word):
            out += bytes.fromhex(digits) * int(count or 1)
    return bytes(out)


def to_hex(data):
    words = []
    for run in re.finditer(rb"(.)\1*", data, re.S):
        count = len(run[0])
        words.append(f"{run[1].hex()}*{count}" if count > 8 else run[1].hex() * count)
    lines, line = [], ""
    for word in words:
        star = "*" in word
        if len(line) + len(word) > 98:
            lines.append(line)
            line = ""
        line += (" " if star and line else "") + word + (" " if star else "")
    return "\n".join(text.strip() for text in [*lines, line]) + "\n"


def is_readable(data):
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return False
    return text.isascii() and all(c.isprintable() or c == "\n" for c in text)


def main(action, source, target):
    to = pathlib.Path(target)
    to.mkdir(parents=True, exist_ok=True)
    for path in sorted(pathlib.Path(source).iterdir()):
        data = path.read_bytes()
        if action == "unpack":
            (to / path.stem).write_bytes(from_hex(data.decode()) if path.suffix == ".hex" else data)
            continue
        name = hashlib.sha256(data).hexdigest()[:12]
        if is_readable(data):
            (to / f"{name}.txt").write_bytes(data)
        else:
            (to / f"{name}.hex").write_text(to_hex(data))


if __name__ == "__main__":
    main(*sys.argv[1:])
