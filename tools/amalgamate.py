#!/usr/bin/env python3
"""Writes damacy.h from src/ and kernels/.

    tools/amalgamate.py            write damacy.h
    tools/amalgamate.py --check    fail if damacy.h is stale
    tools/amalgamate.py --where N  print the source line behind damacy.h:N
    tools/amalgamate.py --root DIR ...  the same in another tree

The output is the inputs verbatim, in the order of src/modules.txt: no dates, hashes or line
numbers, so that git merges damacy.h exactly as it merges its sources. A line of modules.txt is

    src/base/base.h        a module: "#pragma once" and our own includes are left out
    kernels/abi.h          a header of records that host and kernels share, as code
    embed kernels/zstd.cu  the text of a file as the string damacy__source_zstd_cu
    cold src/describe.h    a module between DAMACY__COLD_BEGIN and DAMACY__COLD_END, which save
                           compile time (base/base.h); warm likewise
    #ifdef NAME            a preprocessor line, copied

A file may include only what stands above it, and only from layers that it may see. Every embedded
file must be in the table of src/stage/kernel_sources.h.
"""
import pathlib
import re
import sys

LAYERS = {  # folder: the other folders that it may include; "" is src/ itself
    "base": (),
    "format": ("base",),
    "codec": ("base",),
    "store": ("base",),
    "gpu": ("base", "kernels"),
    "stage": ("base", "format", "codec", "store", "gpu", "kernels"),
    "": ("base", "format", "codec", "store", "gpu", "stage", "kernels"),
    "kernels": (),
}
TABLE = "src/stage/kernel_sources.h"  # gives the strings to NVRTC by the names of their files
SYSTEM = ("src/api.h", "src/base/system.h", "kernels/abi.h")  # may include system headers


class Refused(Exception):
    pass


def lines_of(root, path):
    try:
        return (root / path).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"src/modules.txt: {path} cannot be read: {error}") from None


def layer_of(include):
    return include.split("/")[0] if "/" in include else ""


def name_of(path):
    """The file as #include lines name it."""
    return path.removeprefix("src/")


def literal(line):
    return '"' + line.replace("\\", "\\\\").replace('"', '\\"').replace("??", "?\\?") + '\\n"'


def symbol_of(path):
    return "damacy__source_" + re.sub(r"\W", "_", path.removeprefix("kernels/"))


def embedded(root, path):
    lines = lines_of(root, path)
    # __extension__: one literal longer than 4095 bytes is legal GNU C, silent under -Wpedantic.
    yield f"__extension__ static const char {symbol_of(path)}[] =", None
    for number, line in enumerate(lines, 1):
        yield "    " + literal(line) + (";" if number == len(lines) else ""), number


def module(root, path, above):
    layer = layer_of(name_of(path))
    if layer not in LAYERS:
        raise Refused(f"src/modules.txt: {path} is in no known layer ({', '.join(filter(None, LAYERS))})")
    for number, line in enumerate(lines_of(root, path), 1):
        include = re.match(r'\s*#\s*include\s*([<"])(.+)[>"]', line)
        if include and include[1] == '"':
            target = include[2]
            if target != "api.h" and layer_of(target) not in (layer, *LAYERS[layer]):
                raise Refused(f"{path}:{number}: {layer or 'src'}/ must not include {target}")
            if target not in above:
                raise Refused(f"{path}:{number}: {target} is not above this file in src/modules.txt")
            continue
        if include and path not in SYSTEM:
            raise Refused(f"{path}:{number}: system headers belong into src/base/system.h")
        if line != "#pragma once":
            yield line, number


def check_embedded(root, paths):
    """NVRTC sees embedded files only, so all that they include must be embedded too."""
    for path in paths:
        for number, line in enumerate(lines_of(root, path), 1):
            include = re.match(r'\s*#\s*include\s*"(.+)"', line)
            if include and include[1] not in paths:
                raise Refused(f"{path}:{number}: {include[1]} is not embedded by src/modules.txt")


def check_listed(root, paths):
    """A string that the table does not name would be missed on a device only."""
    text = "\n".join(lines_of(root, TABLE))
    for path in paths:
        if not re.search(rf'"{re.escape(path)}",\s*{symbol_of(path)}\b', text):
            raise Refused(f"{TABLE}: {path} is embedded by src/modules.txt but not listed with {symbol_of(path)}")


def render(root):
    """All lines of damacy.h, each with its (file, line) or None."""
    above, strings = set(), []
    for number, entry in enumerate(lines_of(root, "src/modules.txt"), 1):
        if not entry.strip():
            continue
        yield "", None
        if entry.startswith("#"):
            yield entry, ("src/modules.txt", number)
            continue
        heat = re.match(r"(cold|warm) ", entry)
        entry = entry[heat.end():] if heat else entry
        path = entry.removeprefix("embed ")
        if path != entry:
            known, name, lines = strings, path, embedded(root, path)
            strings = strings + [path]
        else:
            known, name, lines = above, name_of(path), module(root, path, above)
        if name in known:
            raise Refused(f"src/modules.txt:{number}: {entry} stands there twice")
        yield f"/* ==== {path} ==== */", None
        if heat:
            yield f"DAMACY__{heat[1].upper()}_BEGIN", ("src/modules.txt", number)
        for line, source in lines:
            yield line, source and (path, source)
        if heat:
            yield f"DAMACY__{heat[1].upper()}_END", ("src/modules.txt", number)
        if path == entry:
            above.add(name)
    check_embedded(root, strings)
    if name_of(TABLE) in above:
        check_listed(root, strings)


def main(arguments):
    root = pathlib.Path(__file__).resolve().parent.parent
    if arguments[:1] == ["--root"]:
        root, arguments = pathlib.Path(arguments[1]), arguments[2:]
    try:
        lines = list(render(root))
    except Refused as error:
        sys.exit(f"amalgamate: {error}")
    output = root / "damacy.h"
    text = "".join(line + "\n" for line, _ in lines)
    if not arguments:
        output.write_text(text)
    elif arguments == ["--check"]:
        if not output.exists() or output.read_text() != text:
            sys.exit("damacy.h is stale: run tools/amalgamate.py and commit the result")
    elif arguments[0] == "--where" and arguments[1:2] and arguments[1].isdigit():
        if not 1 <= int(arguments[1]) <= len(lines):
            sys.exit(f"damacy.h has {len(lines)} lines")
        print("%s:%s" % (lines[int(arguments[1]) - 1][1] or ("tools/amalgamate.py", "?")))
    else:
        sys.exit(__doc__)


main(sys.argv[1:])
