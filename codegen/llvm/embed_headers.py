"""Writes the device headers as C++ arrays, and the identity of the plugin as a header.

embed_headers.py headers OUT.cpp HEADER...
embed_headers.py identity OUT.hpp CLANG_VERSION RESOURCE_DIR SOURCE... -- HEADER...

A header is named by its path in the folder `device_headers` or `nvrtc_headers`. A file of the latter
also answers to its C name: cstdint to stdint.h.
"""
import hashlib
import os
import re
import sys


def named(paths):
    names = {}
    for path in paths:  # a later file of one name replaces an earlier one
        _, folder, name = re.split(r".*/(device_headers|nvrtc_headers)/", "/" + path)
        names[name] = path
        if folder == "nvrtc_headers" and name.startswith("c"):
            names[name[1:] + ".h"] = path
    return sorted(names.items())


def write_headers(out, paths):
    lines = ['#include "codegen/llvm/device_headers.hpp"', "namespace kiln::codegen::llvm_host {", "namespace {"]
    headers = named(paths)
    for index, (name, path) in enumerate(headers):
        data = open(path, "rb").read()
        lines.append(f"const unsigned char data{index}[] = {{" + ",".join(map(str, data)) + ",0};")
    lines.append("const DeviceHeader headers[] = {")
    for index, (name, path) in enumerate(headers):
        size = os.path.getsize(path)
        lines.append(
            f'{{"{name}", {{reinterpret_cast<const char*>(data{index}), {size}}}}},')
    lines.append("};\n}\nstd::span<const DeviceHeader> device_headers() { return headers; }\n}\n")
    open(out, "w").write("\n".join(lines))


def write_identity(out, version, resource_dir, paths):
    sources, headers = paths[:paths.index("--")], named(paths[paths.index("--") + 1:])
    digest = hashlib.sha256()
    for name, path in [(os.path.basename(path), path) for path in sorted(sources, key=os.path.basename)] + headers:
        data = open(path, "rb").read()
        digest.update(b"%d:%s%d:" % (len(name), name.encode(), len(data)))
        digest.update(data)
    open(out, "w").write(
        "#pragma once\n"
        f'#define KILN_LLVM_VERSION "{version}"\n'
        f'#define KILN_LLVM_RESOURCE_DIR "{resource_dir}"\n'
        "#define KILN_LLVM_HEADERS " + ", ".join(f'"{name}"' for name, _ in headers) + "\n"
        f'#define KILN_LLVM_BUILD "{digest.hexdigest()}"\n')


if __name__ == "__main__":
    if sys.argv[1] == "headers":
        write_headers(sys.argv[2], sys.argv[3:])
    else:
        write_identity(sys.argv[2], sys.argv[3], sys.argv[4], sys.argv[5:])
