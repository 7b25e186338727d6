#!/usr/bin/env python3
"""Runs check_stores on stores of independent writers: check.py PROGRAM CACHE WHICH [--gpu]

WHICH is "golden" (tests/conformance/golden.tar.xz, always there) or "made" (all, written now with the
Python of DAMACY_PYTHON and kept in CACHE; skipped when that Python has no zarr and tensorstore).
"""
import fcntl
import hashlib
import os
import pathlib
import subprocess
import sys
import tarfile

HERE = pathlib.Path(__file__).resolve().parent
MAKER = HERE.parent / "data/make_stores.py"


def made(cache):
    python = os.environ.get("DAMACY_PYTHON") or sys.executable
    folder = cache / ("stores-" + hashlib.sha256(MAKER.read_bytes()).hexdigest()[:12])
    if (folder / "list.txt").exists():
        return folder
    if subprocess.run([python, "-c", "import zarr, tensorstore, numcodecs, ml_dtypes"], capture_output=True).returncode:
        print("1..0 # SKIP no Python with zarr 3.0.6 and tensorstore 0.1.85 (./run test makes one when it can reach PyPI)")
        sys.exit(0)
    done = subprocess.run([python, "-W", "ignore", str(MAKER), str(folder)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        print("".join(f"# {line}\n" for line in done.stdout.splitlines()[-20:]) + "not ok 1 - the stores are written\n1..1")
        sys.exit(1)
    return folder


def golden(cache):
    archive = HERE / "golden.tar.xz"
    folder = cache / ("golden-" + hashlib.sha256(archive.read_bytes()).hexdigest()[:12])
    if not (folder / "list.txt").exists():
        with tarfile.open(archive) as tar:
            tar.extractall(folder)
    return folder


program, cache, which, *options = sys.argv[1:]
cache = pathlib.Path(cache)
cache.mkdir(parents=True, exist_ok=True)
with open(cache / f"{which}.lock", "w") as lock:  # several builds share the cache
    fcntl.flock(lock, fcntl.LOCK_EX)
    stores = {"made": made, "golden": golden}[which](cache)
os.execv(program, [program, *options, str(stores)])
