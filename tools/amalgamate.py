#!/usr/bin/env python3
"""Writes damacy.h from src/ and kernels/.

    tools/amalgamate.py            write damacy.h
    tools/amalgamate.py --check    fail if damacy.h is stale
    tools/amalgamate.py --where N  print the source line behind damacy.h:N

The output is the inputs verbatim, in the order of src/modules.txt: no dates, hashes or line
numbers, so that git merges damacy.h exactly as it merges its sources.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LAYERS = {  # folder: the folders it may include
    "base": (),
    "format": ("base",),
    "codec": ("base",),
    "store": ("base",),
    "gpu": ("base",),
    "stage": ("base", "format", "codec", "store", "gpu"),
    ".": ("base", "format", "codec", "store", "gpu", "stage"),
}


def literal(line):
    return '"' + line.replace("\\", "\\\\").replace('"', '\\"').replace("??", "?\\?") + '\\n"'


def kernel(path):
    lines = (ROOT / path).read_text().splitlines()
    name = re.sub(r"\W", "_", path.removeprefix("kernels/"))
    # __extension__: one literal longer than 4095 bytes is legal GNU C, silent under -Wpedantic.
    yield f"__extension__ static const char damacy__source_{name}[] =", None
    for number, line in enumerate(lines, 1):
        yield "    " + literal(line) + (";" if number == len(lines) else ""), number


def module(path, above):
    folder = path.split("/")[-2] if path.count("/") > 1 else "."
    for number, line in enumerate((ROOT / path).read_text().splitlines(), 1):
        include = re.match(r'#include "(.+)"', line)
        if include:
            target = include[1]
            layer = target.split("/")[0] if "/" in target else "."
            if target not in above:
                sys.exit(f"{path}:{number}: {target} is not above this file in modules.txt")
            if target != "api.h" and layer not in (folder, "kernels", *LAYERS.get(folder, ())):
                sys.exit(f"{path}:{number}: {folder}/ must not include {layer}/")
        elif line != "#pragma once":
            yield line, number


def render():
    above = set()
    for entry in (ROOT / "src/modules.txt").read_text().splitlines():
        path = entry.removeprefix("embed ")
        yield "", None
        if entry.startswith("#"):  # a preprocessor line of its own, such as #ifdef DAMACY_IMPLEMENTATION
            yield entry, None
            continue
        yield f"/* ==== {path} ==== */", None
        for line, number in kernel(path) if path != entry else module(path, above):
            yield line, (path, number)
        above.add(path.removeprefix("src/"))


def main():
    lines = list(render())
    text = "".join(line + "\n" for line, _ in lines)
    output = ROOT / "damacy.h"
    if sys.argv[1:2] == ["--where"]:
        print("%s:%s" % (lines[int(sys.argv[2]) - 1][1] or ("tools/amalgamate.py", "?")))
    elif sys.argv[1:2] == ["--check"]:
        if not output.exists() or output.read_text() != text:
            sys.exit("damacy.h is stale: run tools/amalgamate.py")
    else:
        output.write_text(text)


main()
