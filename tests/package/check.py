#!/usr/bin/env python3
"""The header as its users meet it: check.py NAME runs the checks of that name, TAP on stdout.

    current    damacy.h is what src/ and kernels/ make; nothing is left out; files keep their size
    layers     tools/amalgamate.py refuses what it must, with the place
    c, cxx     the implementation compiles without a warning in every language, links and runs
    symbols    nm: nothing but damacy_* is global, nothing but damacy__* local, no variable
    macros     nothing but DAMACY* and damacy__* is defined, and declarations pull in no other header
    readme     the blocks of README.md compile; its example is examples/hello.c
    examples   the examples run and print what they promise
    tool       tools/damacy.c prints, writes and fails as its first comment says
    subproject a meson project finds dependency('damacy')
    runner     tests/run_tests.py counts strictly
"""
import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
HERE = ROOT / "tests/package"
BOTH = ("-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wundef -Wcast-qual -Wpointer-arith -Wformat=2 -Wvla "
        "-Werror").split()
C_ONLY = "-Wstrict-prototypes -Wmissing-prototypes".split()
GCC_C = "-Wc++-compat -Wjump-misses-init".split()


class Skip(Exception):
    pass


class Failed(Exception):
    pass


def sh(*command, cwd=None):
    """Runs a command: (exit status, output)."""
    done = subprocess.run([str(part) for part in command], cwd=cwd, text=True, errors="replace", stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.returncode, done.stdout


def need(*command, cwd=None):
    code, output = sh(*command, cwd=cwd)
    if code:
        raise Failed(f"{' '.join(map(str, command))}: exit status {code}\n{output}")
    return output


def must(condition, message):
    if not condition:
        raise Failed(message)


def compiler(name):
    if not shutil.which(name):
        raise Skip(f"no {name} here")
    return name


def flags(name, standard):
    """Compiler, language and warnings for one of gcc, clang, g++, clang++."""
    cxx = name.endswith("++")
    warnings = BOTH + ([] if cxx else C_ONLY + GCC_C * (name == "gcc"))
    return [compiler(name), "-x", "c++" if cxx else "c", f"-std={standard}", *warnings, f"-I{ROOT}"]


# ---- current ----


def current(tmp):
    def is_current():
        need(sys.executable, ROOT / "tools/amalgamate.py", "--check")

    def is_complete():
        entries = [line.split(" ")[-1] for line in (ROOT / "src/modules.txt").read_text().splitlines()]
        for pattern in ("src/**/*.h", "kernels/*"):
            for path in sorted(ROOT.glob(pattern)):
                must(str(path.relative_to(ROOT)) in entries, f"{path.relative_to(ROOT)} is not in src/modules.txt")

    def is_small():
        for pattern in ("src/**/*.h", "kernels/*", "tools/*", "examples/*.[ch]", "bench/*.[ch]", "bench/*.cpp"):
            for path in sorted(ROOT.glob(pattern)):
                n = len(path.read_text().splitlines()) if path.is_file() else 0
                must(n <= 600, f"{path.relative_to(ROOT)} has {n} lines, more than 600")

    def functions_are_short():
        for pattern in ("src/**/*.h", "tools/*.[ch]", "examples/*.[ch]", "bench/*.[ch]"):
            for path in sorted(ROOT.glob(pattern)):
                begin = None
                for number, line in enumerate(path.read_text().splitlines(), 1):
                    if line == "{":  # at the margin: the body of a function
                        begin = number
                    elif line == "}" and begin:
                        must(number - begin <= 61, f"{path.relative_to(ROOT)}:{begin}: a function of {number - begin - 1} lines")
                        begin = None

    def where():
        line = next(n for n, text in enumerate((ROOT / "damacy.h").read_text().splitlines(), 1)
                    if text == "#define DAMACY_H")
        source, number = need(sys.executable, ROOT / "tools/amalgamate.py", "--where", line).strip().split(":")
        must(source == "src/api.h" and (ROOT / source).read_text().splitlines()[int(number) - 1] == "#define DAMACY_H",
             f"line {line} is said to be {source}:{number}")

    yield "damacy.h is what the sources make", is_current
    yield "every source file is in modules.txt", is_complete
    yield "no source file is longer than 600 lines", is_small
    yield "no function is longer than 60 lines", functions_are_short
    yield "--where names the source line", where


# ---- layers ----


def layers(tmp):
    base = {"src/modules.txt": "src/api.h\nsrc/base/base.h\nsrc/format/json.h\nsrc/gpu/driver.h\n",
            "src/api.h": "", "src/base/base.h": "", "src/format/json.h": '#include "base/base.h"\n', "src/gpu/driver.h": ""}

    def tree(change):
        root = pathlib.Path(tempfile.mkdtemp(dir=tmp))
        for path, text in {**base, **change}.items():
            if text is not None:
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text(text)
        return root

    def refuses(change, *parts):
        def check():
            code, output = sh(sys.executable, ROOT / "tools/amalgamate.py", "--root", tree(change))
            must(code == 1, f"exit status {code}: {output}")
            for part in parts:
                must(part in output, f"no '{part}' in: {output}")
        return check

    def accepts():
        root = tree({"src/modules.txt": base["src/modules.txt"] + "kernels/abi.h\nembed kernels/abi.h\nembed kernels/a.cu\n",
                     "kernels/abi.h": "#pragma once\n#include <stdint.h>\nint x;\n",
                     "kernels/a.cu": '#include "kernels/abi.h"\nchar q = \'"\'; // "\\n" ??=\n'})
        need(sys.executable, ROOT / "tools/amalgamate.py", "--root", root)
        need(sys.executable, ROOT / "tools/amalgamate.py", "--root", root, "--check")
        (root / "main.c").write_text('#include "damacy.h"\n#include <stdio.h>\n'
                                     'int main(void) { return fputs(damacy__source_a_cu, stdout) < 0 || !damacy__source_abi_h[0]; }\n')
        need("cc", "-std=c11", *BOTH, "-o", root / "main", root / "main.c")
        must(need(root / "main") == (root / "kernels/a.cu").read_text(), "the string is not the file")
        (root / "damacy.h").write_text("old")
        code, output = sh(sys.executable, ROOT / "tools/amalgamate.py", "--root", root, "--check")
        must(code == 1 and "stale" in output, f"{code}: {output}")

    yield "a tree in order passes, and strings hold the files", accepts
    yield "format must not see gpu", refuses({"src/format/json.h": '#include "gpu/driver.h"\n'},
                                             "src/format/json.h:1", "format/ must not include gpu/driver.h")
    yield "base must not see format", refuses({"src/base/base.h": '\n#include "format/json.h"\n'}, "src/base/base.h:2")
    yield "format must not see kernels", refuses({"src/format/json.h": '#include "kernels/abi.h"\n'}, "must not include kernels")
    yield "an include must stand above", refuses({"src/gpu/driver.h": '#include "base/late.h"\n'},
                                                 "src/gpu/driver.h:1", "not above")
    yield "system headers have one place", refuses({"src/gpu/driver.h": "#include <stdio.h>\n"},
                                                   "src/gpu/driver.h:1", "system.h")
    yield "a missing file is named", refuses({"src/gpu/driver.h": None}, "src/gpu/driver.h")
    yield "a folder that is no layer is named", refuses({"src/modules.txt": "src/api.h\nsrc/misc/x.h\n", "src/misc/x.h": ""},
                                                        "src/misc/x.h", "no known layer")
    yield "an entry twice is named", refuses({"src/modules.txt": "src/api.h\nsrc/api.h\n"}, "src/modules.txt:2", "twice")
    yield "an embedded file sees embedded files only", refuses(
        {"src/modules.txt": "src/api.h\nembed kernels/a.cu\n", "kernels/a.cu": '\n#include "kernels/abi.h"\n'},
        "kernels/a.cu:2", "not embedded")
    yield "an embedded file must be in the table of kernels", refuses(
        {"src/modules.txt": "src/api.h\nembed kernels/a.cu\nembed kernels/b.cuh\nsrc/stage/kernel_sources.h\n", "kernels/a.cu": "\n",
         "kernels/b.cuh": "\n", "src/stage/kernel_sources.h": 'x y[] = {\n{"kernels/a.cu", damacy__source_a_cu},\n};\n'},
        "src/stage/kernel_sources.h", "kernels/b.cuh", "not listed")


# ---- c, cxx ----


def program(tmp, name, standard, *options):
    def check():
        output = pathlib.Path(tmp) / f"{name}-{standard}"
        begin = time.monotonic()
        need(*flags(name, standard), *options, HERE / "app.c", "-o", output)
        print(f"# {name} -std={standard} {' '.join(options)}: {time.monotonic() - begin:.1f} s")
        need(output)
    return check


def c(tmp):
    def two_units(name, static):
        def check():
            command = flags(name, "c++17" if "++" in name else "c11") + (["-DDAMACY_STATIC"] if static else [])
            for unit in "ab":
                need(*command, "-O0", "-c", HERE / f"unit_{unit}.c", "-o", pathlib.Path(tmp) / f"{unit}.o")
            output = pathlib.Path(tmp) / "units"
            need(name, pathlib.Path(tmp) / "a.o", pathlib.Path(tmp) / "b.o", "-o", output)
            need(output)
        return check

    def system_header_first():
        code, output = sh(*flags("gcc", "c11"), "-fsyntax-only", "-DSYSTEM_HEADER_FIRST", HERE / "app.c")
        must(code != 0, "compiled, although pread and others are hidden")
        first = next((line for line in output.splitlines() if "error" in line), "")
        must("include damacy.h first in this file, or compile with -D_GNU_SOURCE" in first, output[:2000])

    def system_header_first_with_macro():
        need(*flags("gcc", "c11"), "-fsyntax-only", "-DSYSTEM_HEADER_FIRST", "-D_GNU_SOURCE", HERE / "app.c")

    def dlpack(name, standard):
        return lambda: need(*flags(name, standard), "-fsyntax-only", HERE / "dlpack.c")

    yield "gcc, C11, -O2", program(tmp, "gcc", "c11", "-O2")
    yield "gcc, C17, -O0", program(tmp, "gcc", "c17", "-O0")
    yield "gcc, C11, -O2, glibc's checks", program(tmp, "gcc", "c11", "-O2", "-D_FORTIFY_SOURCE=3")
    yield "clang, C11, -O2", program(tmp, "clang", "c11", "-O2")
    yield "two files share one implementation", two_units("gcc", False)
    yield "DAMACY_STATIC: each file has its own", two_units("gcc", True)
    yield "DAMACY_STATIC in C++", two_units("clang++", True)
    yield "a hidden pread is a clear error", system_header_first
    yield "-D_GNU_SOURCE allows system headers first", system_header_first_with_macro
    yield "DLPack's structures agree in C", dlpack("gcc", "c11")
    yield "DLPack's structures agree in C++", dlpack("g++", "c++11")


def cxx(tmp):
    for name in ("g++", "clang++"):
        for standard in ("c++11", "c++14", "c++17", "c++20"):
            level = "-O2" if standard == "c++17" else "-O0"
            yield f"{name}, {standard}, {level}", program(tmp, name, standard, level)
    yield "g++, C++17, -O2, glibc's checks", program(tmp, "g++", "c++17", "-O2", "-D_FORTIFY_SOURCE=2")


# ---- symbols, macros ----


def symbols(tmp):
    allowed = re.compile(r"damacy_\w+\.\w+$|\w+\.\d+$|damacy__\w+(\.\w+)*$|(__PRETTY_FUNCTION__|__func__)\.\d+$|\.L")

    def check(name, static):
        def run():
            unit = pathlib.Path(tmp) / "unit.o"
            need(*flags(name, "c11"), "-O1", "-fno-pie", "-c", *(["-DDAMACY_STATIC"] if static else []), HERE / "unit_a.c", "-o", unit)
            n_global = 0
            for line in need("nm", unit).splitlines():
                kind, symbol = line.split()[-2:]
                if kind in "Uw" or symbol == "name_from_a":
                    continue
                if kind.isupper():
                    must(not static and re.match(r"damacy_[a-z]", symbol), f"global symbol {symbol}")
                    n_global += 1
                elif static:
                    must(re.match(r"damacy_\w+", symbol) or allowed.match(symbol), f"local symbol {symbol}")
                else:
                    must(allowed.match(symbol), f"local symbol {symbol}")
                must(kind not in "dDbBcC", f"{symbol} is a variable")
            must(static or n_global > 20, f"only {n_global} public functions")
        return run

    def links_alone():
        unit = pathlib.Path(tmp) / "app"
        need(compiler("gcc"), "-O1", f"-I{ROOT}", HERE / "app.c", "-o", unit)
        libraries = re.findall(r"\(NEEDED\)\s+Shared library: \[(.+?)\]", need("readelf", "-d", unit))
        must(all(re.match(r"libc\.|ld-", library) for library in libraries), f"needs {libraries}")

    yield "gcc: public functions are global, the rest is damacy__", check("gcc", False)
    yield "clang: public functions are global, the rest is damacy__", check("clang", False)
    yield "DAMACY_STATIC: nothing is global", check("gcc", True)
    yield "a program needs libc alone", links_alone


def macros(tmp):
    def defined(name, text, *options):
        source = pathlib.Path(tmp) / "macros.c"
        source.write_text(text)
        return set(re.findall(r"^#define (\w+)", need(compiler(name), "-std=c11", "-dM", "-E", *options, f"-I{ROOT}", source), re.M))

    def implementation(name):
        def check():
            headers = set(re.findall(r"^#include <.+>", (ROOT / "damacy.h").read_text(), re.M))
            before = defined(name, "".join(f"{line}\n" for line in sorted(headers)), "-D_GNU_SOURCE")
            after = defined(name, '#define DAMACY_IMPLEMENTATION\n#include "damacy.h"\n')
            foreign = sorted(macro for macro in after - before if not re.match("DAMACY|damacy__", macro))
            must(not foreign, f"macros {', '.join(foreign)}")
        return check

    def declarations():
        before = defined("gcc", "#include <stddef.h>\n#include <stdint.h>\n")
        after = defined("gcc", '#include "damacy.h"\n')
        foreign = sorted(macro for macro in after - before if not re.match(r"DAMACY_[A-Z]", macro))
        must(not foreign, f"macros {', '.join(foreign)}")

    yield "gcc: the implementation defines our macros alone", implementation("gcc")
    yield "clang: the implementation defines our macros alone", implementation("clang")
    yield "declarations define DAMACY_* alone and include nothing more", declarations


# ---- readme, subproject ----


def readme(tmp):
    text = (ROOT / "README.md").read_text()
    blocks = re.findall(r"^```(c|cpp)\n(.*?)^```", text, re.M | re.S)
    hello = (ROOT / "examples/hello.c").read_text()

    def example():
        must(any(block == hello for _, block in blocks), "no block of README.md is examples/hello.c, byte for byte")

    def compiles(number, language, block):
        def check():
            source = pathlib.Path(tmp) / f"block{number}.{language}"
            if "int main" not in block:  # statements, in a function that has what they speak of
                block_ = ("#define DAMACY_IMPLEMENTATION\n#include \"damacy.h\"\n#include <stdio.h>\nvoid block(damacy* d, "
                          "damacy_config config, damacy_error err, damacy_batch batch, const char* uri, void* stream);\n"
                          "void block(damacy* d, damacy_config config, damacy_error err, damacy_batch batch, const char* uri, "
                          f"void* stream)\n{{\n(void)d, (void)config, (void)err, (void)batch, (void)uri, (void)stream;\n{block}\n}}\n")
            else:
                block_ = block
            source.write_text(block_)
            name = "clang++" if language == "cpp" and not shutil.which("g++") else "g++" if language == "cpp" else "gcc"
            need(*flags(name, "c++17" if language == "cpp" else "c11"), "-c", "-O0", source, "-o", f"{source}.o")
        return check

    def links():
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", text):
            must((ROOT / target).exists(), f"README.md links {target}, which is not there")

    def run_compiles():
        lines = re.findall(r'^ *(?:\$\{CC:-cc\}|c\+\+) (.*?) -o "\$BUILD/\S+" "?([a-z]+/[a-z$]+\.c(?:pp)?)', (ROOT / "run").read_text(), re.M)
        must(len(lines) >= 4, f"found {len(lines)} compilers' lines in run")
        for options, source in lines:
            for path in [source] if "$" not in source else ["bench/dataset.c", "bench/pipeline.c"]:
                need(compiler("g++" if path.endswith("pp") else "gcc"), "-fsyntax-only", *options.split(), path, cwd=ROOT)

    yield "the example is examples/hello.c", example
    yield "what ./run compiles compiles with its options", run_compiles
    yield "linked files exist", links
    for number, (language, block) in enumerate(blocks):
        yield f"block {number} compiles", compiles(number, language, block)


def examples(tmp):
    def build(name, *options):
        program = pathlib.Path(tmp) / name
        need(*flags("gcc", "c11"), "-O0", ROOT / f"examples/{name}.c", "-o", program, *options, "-ldl", "-lpthread", "-lm")
        return program

    def on_a_gpu(program, *arguments):
        """Output of a program that ends with 77, saying why, where there is no GPU."""
        code, output = sh(program, *arguments)
        if code == 77:
            must(re.match(r"\w+: skipped, .{8,}", output), f"no reason given: {output}")
            raise Skip(output.strip())
        must(code == 0, f"{code}: {output}")
        return output

    def store():
        with tarfile.open(ROOT / "tests/conformance/golden.tar.xz") as archive:
            members = [member for member in archive.getmembers() if "-shard-end-" in member.name]
            archive.extractall(tmp, members)
        return next(path.parent for path in sorted(pathlib.Path(tmp).glob("*-shard-end-*/zarr.json")))

    def custom_store():
        promised = re.search(r"custom_store\n((?: \*     [0-9 ]+(?: \*/)?\n)+)", (ROOT / "examples/custom_store.c").read_text())[1]
        promised = "".join(line.removeprefix(" *     ").removesuffix(" */") + "\n" for line in promised.splitlines())
        must(need(build("custom_store")) == promised, "custom_store prints something else than its first comment")

    def hello():
        lines = need(build("hello"), store()).splitlines()
        must(len(lines) == 4 and all(line.startswith(f"batch {i}: 4 crops at ") for i, line in enumerate(lines)), "\n".join(lines))
        code, output = sh(pathlib.Path(tmp) / "hello", "/nonexistent")
        must(code == 1 and "/nonexistent" in output, f"{code}: {output}")

    def inspect():
        output = need(build("inspect"), store())
        must("sharding_indexed(" in output and " 0 bad: " in output, output)

    def codec():
        output = on_a_gpu(build("codec"))
        must(len(re.findall(r": [0-9.]+ GB/s, every byte as it was\n", output)) == 2, output)

    def runtime():
        toolkit = pathlib.Path(os.environ.get("CUDA_PATH", "/usr/local/cuda"))
        if not (toolkit / "include/cuda_runtime_api.h").exists() or not (toolkit / "lib64/libcudart.so").exists():
            raise Skip(f"no CUDA toolkit in {toolkit}")
        program = build("runtime", "-isystem", toolkit / "include", f"-L{toolkit}/lib64", f"-Wl,-rpath,{toolkit}/lib64", "-lcudart")
        must("crops" in (output := on_a_gpu(program, store())) and ": the same as on the CPU" in output, output)

    def train():
        need(*flags("gcc", "c11"), "-D_GNU_SOURCE", "-O2", HERE / "tissue_store.c", "-o", f"{tmp}/tissue_store", "-ldl", "-lpthread", "-lm")
        code, output = sh(f"{tmp}/tissue_store", f"{tmp}/tissue.zarr")
        if "libzstd" in output:
            raise Skip(output.strip())
        must(code == 0, output)
        program = build("train", "-O2")

        def learn(seed):
            output = need(program, "--device", "cpu", "--steps", 40, "--seed", seed, f"{tmp}/tissue.zarr")
            return [line for line in output.splitlines() if line.startswith("step")], output.splitlines()[-1]

        steps, last = learn(1)
        first, final = re.match(r"from ([0-9.]+) to ([0-9.]+) of ", last).groups()
        must(len(steps) == 20 and float(final) * 3 < float(first), f"the loss does not fall to a third: {last}")
        must(learn(1)[0] == steps, "the same seed gives other losses")
        must(learn(2)[0] != steps, "another seed gives the same losses")
        code, output = sh(program, "/nonexistent")
        must(code == 1 and "/nonexistent" in output, f"{code}: {output}")
        must(sh(program)[0] == 2, "no volume is not a usage error")

    yield "codec", codec
    yield "runtime", runtime
    yield "custom_store", custom_store
    yield "hello", hello
    yield "inspect", inspect
    yield "train: the loss falls to a third, and the same way again", train


def tool(tmp):
    program = pathlib.Path(tmp) / "damacy"
    with tarfile.open(ROOT / "tests/conformance/golden.tar.xz") as archive:
        archive.extractall(tmp, [member for member in archive.getmembers() if "-shard-end-" in member.name])
    store = next(path.parent for path in sorted(pathlib.Path(tmp).glob("*-shard-end-*/zarr.json")))
    metadata = json.loads((store / "zarr.json").read_text())
    whole = ",".join(f"0:{extent}" for extent in metadata["shape"])

    def damacy(*arguments):
        done = subprocess.run([program, *map(str, arguments)], stdin=subprocess.DEVNULL, capture_output=True)
        return done.returncode, done.stdout, done.stderr.decode()

    def builds():
        need(*flags("gcc", "c11"), "-O0", ROOT / "tools/damacy.c", "-o", program, "-ldl", "-lpthread", "-lm")

    def info():
        code, output, _ = damacy("info", store, "--json")
        said = json.loads(output)
        must(code == 0 and said["shape"] == metadata["shape"] and said["data_type"] == metadata["data_type"], output)
        must(damacy("info", store)[1].decode().startswith("uri "), "info prints something else")

    def cat():
        size = math.prod(metadata["shape"]) * {"8": 1, "16": 2, "32": 4, "64": 8}[re.search(r"\d+$", metadata["data_type"])[0]]
        code, output, error = damacy("cat", store, "--device", "cpu", "--box", whole)
        must(code == 0 and len(output) == size, f"{code}: {len(output)} of {size} bytes {error}")
        must(damacy("cat", store, "--device", "cpu", "-o", f"{tmp}/a.npy")[0] == 0, "cat -o fails")
        written = pathlib.Path(tmp, "a.npy").read_bytes()
        must(written.startswith(b"\x93NUMPY\x01") and written.endswith(output) and (len(written) - size) % 64 == 0, "not numpy's format")
        for short, name in (("f32", "float32"), ("bf16", "bfloat16"), ("u8", "uint8")):
            first, second = (damacy("cat", store, "--device", "cpu", "--dtype", dtype) for dtype in (short, name))
            must(first[0] == second[0] == 0 and first[1] == second[1] and len(first[1]) == math.prod(metadata["shape"]) *
                 {"f32": 4, "bf16": 2, "u8": 1}[short], f"--dtype {short}: {first[0]} {first[2]} {second[0]} {second[2]}")
        code, text, error = damacy(f"--array_path={store}")
        must(code == 0 and len(text.splitlines()) == math.prod(metadata["shape"]), f"{code}: {error}")

    def whole_or_not_at_all():
        folder = pathlib.Path(tmp) / "whole"
        broken = folder / "broken"
        shutil.copytree(store, broken)
        chunk = max((path for path in broken.rglob("*") if path.is_file() and path.name != "zarr.json"), key=lambda path: path.stat().st_size)
        chunk.write_bytes(chunk.read_bytes()[:-1])
        (folder / "old").write_text("old")
        os.symlink("old", folder / "link")
        before = sorted(folder.iterdir())
        for name in ("new", "old", "link", "none/new"):
            code, output, error = damacy("cat", broken if name != "none/new" else store, "--device", "cpu", "-o", folder / name)
            must(code == 1 and not output and re.fullmatch(r"damacy: [^\n]+\n", error), f"{name}: {code}: {error}")
            must(sorted(folder.iterdir()) == before and (folder / "old").read_text() == "old", f"{name} leaves {list(folder.iterdir())}")
        whole_bytes = damacy("cat", store, "--device", "cpu")[1]
        must(damacy("cat", store, "--device", "cpu", "-o", folder / "link")[0] == 0, "cat -o LINK fails")
        must((folder / "link").is_symlink() and (folder / "old").read_bytes() == whole_bytes, "a link is not followed")
        must(damacy("cat", store, "--device", "cpu", "-o", "/dev/stdout")[1] == whole_bytes, "/dev/stdout is not written as it stands")
        must(sorted(folder.iterdir()) == before, f"{list(folder.iterdir())} are left")

    def verify():
        code, output, error = damacy("verify", store)
        must(code == 0 and b" 0 bad" in output, f"{code}: {output} {error}")

    def fails():
        for arguments, status in ((("info", "/nonexistent"), "not found"), (("verify", "/nonexistent"), "not found"),
                                  ((f"--array_path={tmp}/none",), "not found"),
                                  (("cat", store, "--box", re.sub(r"^0:\d+", "0:99999999", whole)), "invalid argument")):
            code, output, error = damacy(*arguments)
            must(code == 1 and not output and re.fullmatch(rf"damacy: {status}: [^\n]+\n", error), f"{arguments}: {code}: {error}")

    def misuse():
        for arguments, what in (((), "command is missing"), (("info",), "URI is missing"), (("bogus", store), "bogus"),
                                (("cat", store, "--box", "1"), "--box"), (("cat", store, "--dtype", "f7"), "'f7'"),
                                (("cat", store, "-o"), "missing after: -o"), (("cat", store, "--frob", "1"), "--frob"),
                                (("info", store, store), "more than one"), (("info", store, "--level", "-1"), "'-1'")):
            code, output, error = damacy(*arguments)
            must(code == 2 and not output and re.fullmatch(r"damacy: [^\n]+ \(usage: damacy --help\)\n", error) and what in error,
                 f"{arguments}: {code}: {error}")
        for arguments in (("--help",), ("cat", "--help")):
            code, output, error = damacy(*arguments)
            must(code == 0 and output.startswith(b"usage: ") and not error, f"{arguments}: {code}: {error}")
        must( re.fullmatch(rb"damacy [0-9.]+\n", damacy("--version")[1]), "--help or --version")

    yield "it compiles", builds
    yield "info", info
    yield "cat", cat
    yield "cat -o leaves a whole file or none", whole_or_not_at_all
    yield "verify", verify
    yield "what fails is one line, and exit status 1", fails
    yield "misuse is one line, and exit status 2", misuse


def subproject(tmp):
    def check():
        root = pathlib.Path(tmp) / "user"
        (root / "subprojects").mkdir(parents=True)
        os.symlink(ROOT, root / "subprojects/damacy")
        shutil.copy(HERE / "app.c", root)
        (root / "meson.build").write_text("project('user', 'c')\n"
                                          "executable('app', 'app.c', dependencies: dependency('damacy', fallback: 'damacy'))\n")
        need("meson", "setup", root / "out", root)
        need("ninja", "-C", root / "out")
        need(root / "out/app")

    yield "a meson project uses damacy as a subproject", check


# ---- runner ----


def runner(tmp):
    sys.path.insert(0, str(ROOT / "tests"))
    import run_tests

    def counts(text, code, passed, failed, skipped):
        def check():
            result = run_tests.Result("x")
            run_tests.count(result, text, code)
            got = (result.passed, len(result.failed), len(result.skipped))
            must(got == (passed, failed, skipped), f"{got} from {text!r} and status {code}: {result.failed}, {result.skipped}")
        return check

    yield "results are counted", counts("ok 1 - a\nok 2 - b # SKIP no disk\nnot ok 3 - c\n1..3\n", 1, 1, 1, 1)
    yield "a plan may come first", counts("1..2\nok 1 - a\nok 2 - b\n", 0, 2, 0, 0)
    yield "a missing plan fails", counts("ok 1 - a\n", 0, 1, 1, 0)
    yield "fewer results than planned fail", counts("1..3\nok 1 - a\nok 2 - b\n", 0, 2, 1, 0)
    yield "no results fail", counts("1..0\n", 0, 0, 1, 0)
    yield "a program that says why it skips all is a skip", counts("1..0 # SKIP no device\n", 0, 0, 0, 1)
    yield "a crash fails", counts("1..1\nok 1 - a\n", -11, 1, 1, 0)
    yield "an exit status fails without a failed result", counts("1..1\nok 1 - a\n", 1, 1, 1, 0)
    yield "silence fails", counts("", 0, 0, 1, 0)
    yield "status 77 is a skip", counts("# no GPU\n", 77, 0, 0, 1)
    yield "status 77 beside a plan that says why is one skip", counts("1..0 # SKIP no device\n", 77, 0, 0, 1)
    yield "numbers must run on", counts("ok 1 - a\nok 1 - b\n1..2\n", 0, 2, 1, 0)
    yield "an unexpected end by the program fails", counts("1..1\nok 1 - a\nBail out! disk full\n", 0, 1, 1, 0)


def main():
    name = sys.argv[1]
    failed = number = 0
    with tempfile.TemporaryDirectory() as tmp:
        for title, check in globals()[name](tmp):
            number += 1
            try:
                check()
                print(f"ok {number} - {title}", flush=True)
            except Skip as reason:
                print(f"ok {number} - {title} # SKIP {reason}", flush=True)
            except Failed as error:
                failed += 1
                print("".join(f"# {line}\n" for line in str(error)[:6000].splitlines()), end="")
                print(f"not ok {number} - {title}", flush=True)
    print(f"1..{number}")
    return failed != 0


sys.exit(main())
