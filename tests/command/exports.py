#!/usr/bin/env python3
"""Kiln's libraries export the names of its public headers, all of them and nothing else.

Usage: PUBLIC_HEADERS KERNELS_HEADERS LIBKILN LIBKILN_CLI LIBKILN_INTERNAL [PLUGIN...]"""
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from public_surface import public_headers  # noqa: E402

# What kiln/kernels/*.hpp declare, of one type: kiln::detail::UntypedKernel<...> kiln::templates::rmsnorm_base<float>();
# of no type: kiln::templates::sort_by_expert_kernel()
KERNEL = re.compile(r"^(?:void|unsigned long|kiln::(?:Kernel|detail::UntypedKernel)<.*>) kiln::templates::(\w+)<[\w:, ()<>]+>\(.*\)$"
                    r"|^kiln::templates::(\w+_kernel)\(\)$")
# With a user's functor and its header: a program's own compiler makes these, from what the header defines.
USERS_FUNCTOR = "(std::filesystem::__cxx11::path const&)"
INNER = ("cache", "codegen", "runtime", "templates", "tools")
RTTI = re.compile(r"^(?:typeinfo name for|typeinfo for|vtable for) ")


def exported(library):
    """(kind, demangled name) of what a library exports."""
    lines = subprocess.check_output(["nm", "--dynamic", "--defined-only", "--demangle", library], text=True)
    return [(line[17], line[19:]) for line in lines.splitlines()]


class PublicNames:
    def __init__(self, *folders):
        headers = public_headers(folders).values()
        self.text = "\n".join(re.sub(r"//.*", "", p.read_text()) for p in headers)

    def has(self, symbol):
        """Whether a name is one that a public header declares, not merely a class that it only mentions."""
        if kernel := KERNEL.match(symbol):
            return bool(re.search(rf"\b{kernel[1] or kernel[2]}\(", self.text))
        name = RTTI.sub("", symbol)
        if not name.startswith("kiln::"):
            return False
        # A lambda of a function that headers define: those of other functions are not exported.
        name = name.split("::{lambda")[0]
        name = re.sub(r"\[abi:\w+\]", "", name.removeprefix("kiln::")).split("(")[0].removeprefix("detail::")
        scopes = name.split("::")
        if scopes[0] in INNER or "<" in name:
            return False
        if len(scopes) == 1 and not RTTI.match(symbol):
            return bool(re.search(rf"\b{scopes[0]}\(", self.text))
        # Each class around a function is defined in the header; a class that is only named belongs to Kiln.
        owners = scopes if RTTI.match(symbol) else scopes[:-1]
        return all(re.search(rf"\b(?:class|struct)\s+{owner}\b[^;{{]*\{{", self.text) for owner in owners)


def main():
    headers, kernels, library, command, internal, *plugins = sys.argv[1:]
    public = PublicNames(pathlib.Path(headers), pathlib.Path(kernels))
    failures = []

    names = exported(library)
    failures += [f"libkiln exports {name}, which no public header declares" for _, name in names
                 if not public.has(name)]
    got = {name for _, name in names}
    wanted = {name for kind, name in exported(internal)
              if (kind in "TDBR" or KERNEL.match(name)) and public.has(name) and not name.endswith(USERS_FUNCTOR)}
    failures += [f"install/kiln.map leaves out {name}" for name in sorted(wanted - got) if "cli_main" not in name]

    alone = [name for _, name in exported(command)]
    if len(alone) != 1 or not alone[0].startswith("kiln::cli_main("):
        failures.append(f"libkiln_cli exports more or less than kiln::cli_main: {alone[:20]}")
    for plugin in plugins:
        failures += [f"{plugin} exports {name}" for _, name in exported(plugin)
                     if not re.match(r"kiln_(llvm|mpi)_\w+$", name)]

    # The check itself: it knows what is inside, and a name that is there from one that is not.
    inside = [name for _, name in exported(internal)]
    # Of three types twenty-two kernels, the reference of the GEMM, eight kinds of it, three of grouped ones, a gated one
    # and two of 8-bit results, four of ranks and the bytes of each; of 8-bit ones the reference, two kinds and
    # three gated ones with either sums, with scales of blocks one, three gated ones and three grouped ones, and weights of gate and up; two rotary embeddings, each of ten types; one sort.
    kernels = len([name for name in wanted if KERNEL.match(name)])
    if kernels != 3 * (22 + 1 + 8 + 3 + 1 + 2 + 4 * 2) + 1 + 5 * 2 + 4 + 3 + 1 + 2 * 10 + 1:
        failures.append(f"{kernels} kernels, and what they need, are exported, and not as many as there are")
    if not any(name.startswith("kiln::runtime::") for name in inside) or len(wanted) < 50:
        failures.append(f"only {len(wanted)} public names were found in {internal}")
    for stranger in ("kiln::runtime::Tuner::run()", "boost::asio::io_context::run()", "kiln::detail::Engine::tune()",
                     "kiln::Kernel<A, B, void (int)> kiln::templates::unknown_kernel<float>()", "kiln::RecordedSpace::Data::slot()", "typeinfo for kiln::runtime::Device"):
        if public.has(stranger):
            failures.append(f"the check does not mind {stranger}")
    if failures:
        sys.exit("\n".join(failures))
    print(f"{len(names)} names exported, {len(wanted)} of them functions of public headers")


main()
