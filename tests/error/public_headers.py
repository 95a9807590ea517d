"""Every public header compiles alone, and reaches nothing but Kiln, the standard library and Boost.Hana.

  public_headers.py INCLUDE_DIR... -- COMPILER...
"""
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import boost_path  # noqa: E402,F401
from public_surface import public_headers  # noqa: E402

STANDARD = """algorithm any array atomic barrier bit bitset cassert cctype cerrno cfenv cfloat charconv
chrono cinttypes climits clocale cmath codecvt compare complex concepts condition_variable coroutine
csetjmp csignal cstdarg cstddef cstdint cstdio cstdlib cstring ctime cuchar cwchar cwctype deque
exception execution expected filesystem format forward_list fstream functional future
initializer_list iomanip ios iosfwd iostream istream iterator latch limits list locale map memory
memory_resource mutex new numbers numeric optional ostream queue random ranges ratio regex
scoped_allocator semaphore set shared_mutex source_location span sstream stack stdexcept stop_token
streambuf string string_view syncstream system_error thread tuple type_traits typeindex typeinfo
unordered_map unordered_set utility valarray variant vector version""".split()


class Refused(Exception):
    """What the compiler says of a source that it does not accept."""


class Checker:
    def __init__(self, roots, compiler):
        self.roots = roots
        self.public = {name: path for name, path in public_headers(roots).items() if path}
        self.ours = {str(path.resolve()) for path in self.public.values()}
        self.compiler = [c for c in compiler if pathlib.Path(c).name != "ccache"]
        self.standard = self.reached("".join(
            f"#if __has_include(<{h}>)\n#include <{h}>\n#endif\n" for h in STANDARD))

    def run(self, text, *options):
        with tempfile.NamedTemporaryFile("w", suffix=".cpp") as source:
            source.write(text)
            source.flush()
            return subprocess.run([*self.compiler, "-std=c++20", *(f"-I{root}" for root in self.roots),
                                   *options, source.name], text=True, capture_output=True)

    def names_the_language(self, header):
        """Whether an older C++ meets one error, which says what to do, and the end of compiling."""
        errors = [line for line in self.run(f"#include <{header}>\n", "-fsyntax-only", "-std=c++17")
                  .stderr.splitlines() if "error:" in line]
        return len(errors) == 2 and "-std=c++20" in errors[0] and "ends compiling" in errors[1]

    def reached(self, text, *options):
        """The files that a source includes, directly or not; with `-fsyntax-only` it is compiled, too."""
        with tempfile.NamedTemporaryFile("r", suffix=".d") as rule:
            result = self.run(text, "-MD" if options else "-M", "-MF", rule.name, *options)
            if result.returncode != 0:
                raise Refused(result.stderr)
            files = re.split(r"(?<!\\)\s+", rule.read().replace("\\\n", " ").strip())[2:]
        return {str(pathlib.Path(f).resolve()) for f in files}

    def strangers(self, text, *options):
        """Those that a public header may not reach."""
        return sorted(f for f in self.reached(text, *options) - self.standard - self.ours
                      if "/boost/hana/" not in f and not f.endswith("/boost/version.hpp"))


def main():
    split = sys.argv.index("--")
    roots = [pathlib.Path(root) for root in sys.argv[1:split]]
    checker = Checker(roots, sys.argv[split + 1:])
    # A stranger is seen when there is one.
    for stranger in ("sys/mman.h", "kiln/detail/format.hpp"):
        if not checker.strangers(f"#include <{stranger}>\n"):
            sys.exit(f"the check does not mind <{stranger}>")
    failures = []
    # What lies in a folder of kiln/kernels is reached by the name that programs know.
    headers = sorted(name for name in checker.public
                     if not name.startswith("kiln/detail/") and not re.match("kiln/kernels/.*/", name))
    wrong_language = [h for h in headers if not checker.names_the_language(h)]
    for header in headers:
        text = f"#include <{header}>\n"
        # Twice, because of guards.
        try:
            strangers = checker.strangers(text + text, "-fsyntax-only", "-Wall", "-Wextra", "-Werror")
        except Refused as refused:
            failures.append(f"{header} does not compile alone:\n{refused}")
            continue
        failures += [f"{header} reaches {s}" for s in strangers]
    if wrong_language:
        failures.append(f"with -std=c++17 these do not say at once what they need: {wrong_language}")
    failures += [f"{name} is missing" for name in ("kiln/kiln.hpp", "kiln/kernels/gemm.hpp") if name not in headers]
    if len(headers) < 15 or failures:
        sys.exit("\n".join(failures) or f"only {len(headers)} headers in {roots}")
    print(f"{len(headers)} public headers stand alone")


main()
