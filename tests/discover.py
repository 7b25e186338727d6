#!/usr/bin/env python3
"""Lists test programs for meson.build: one line "suite name file language needs threads shared kernels"
each.

A test is found by its place: tests/unit/test_x.c, tests/kernel/test_x.cpp, tests/pipeline/test_x.c,
tests/gpu/test_x.c and tests/fuzz/fuzz_x.c (or .cpp). needs names the libraries whose headers it
includes, directly or through other files ("-" for none); threads is 1 when it starts threads; shared
is 1 when it uses the public interface alone, so that one compiled implementation serves it; kernels is
1 when it runs all kernels, which are compiled once, too.
"""
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIBRARIES = {"zstd.h": "zstd", "zstd_errors.h": "zstd", "lz4.h": "lz4", "lz4hc.h": "lz4", "lz4frame.h": "lz4",
             "blosc.h": "blosc", "zlib.h": "zlib"}
# Others look inside the library, or change what it includes.
PUBLIC = {"batches", "defects", "errors", "faults", "files_faults", "formats", "hostile", "semantics_batch", "semantics_create",
          "semantics_data", "semantics_errors", "semantics_more", "semantics_push", "stress"}


def needs(path, seen):
    seen.add(path)
    found = set()
    for bracket, name in re.findall(r'^\s*#\s*include\s*([<"])([^>"]+)', path.read_text(), re.M):
        if bracket == "<":
            found |= {LIBRARIES[name]} if name in LIBRARIES else set()
            continue
        for folder in (path.parent, ROOT, ROOT / "src", ROOT / "tests"):
            target = (folder / name).resolve()
            if target.is_file():
                if target not in seen and "tests" in target.parts:
                    found |= needs(target, seen)
                break
    return found


for suite in ("unit", "kernel", "pipeline", "gpu", "fuzz"):
    for path in sorted((ROOT / "tests" / suite).glob("*.c*")):
        match = re.fullmatch(r"(test|fuzz)_(\w+)\.(c|cpp)", path.name)
        if not match or (match[1] == "fuzz") != (suite == "fuzz"):
            continue
        threads = suite == "pipeline" or re.search(r"pthread_create|damacy__thread_|std::thread", path.read_text())
        files = set()
        print(suite, match[2], path.relative_to(ROOT), match[3], ",".join(sorted(needs(path, files))) or "-",
              1 if threads else 0, 1 if suite == "pipeline" and match[2] in PUBLIC and match[3] == "c" else 0,
              1 if ROOT / "tests/simt/kernels.h" in files else 0)
