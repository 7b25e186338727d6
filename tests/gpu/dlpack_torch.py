#!/usr/bin/env python3
"""Batches handed to PyTorch by DLPack, read on its streams under load: dlpack_torch.py [SECONDS]

Builds a small shared library from damacy.h, writes a volume, and takes every batch through
__dlpack__ and torch.utils.dlpack on the default stream and on others, without ever waiting on the
host: tensors are dropped while the kernels that read them are still queued, and compared with the
voxels there. Skips aloud without PyTorch, a device it can use, or a C compiler. Prints TAP.
"""
import ctypes
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
EXTENT, CHUNK, CROP, BATCH = 96, 32, 40, 4

LIBRARY = r"""
#define DAMACY_IMPLEMENTATION
#include "damacy.h"
#include <stdio.h>

int t_create(const char* uri, uint32_t batch, uint32_t slots, uint64_t gpu_bytes, damacy** out,
             char* message)
{
    damacy_config config = {0};
    damacy_error err;
    damacy_status status;
    (void)uri;
    config.device = DAMACY_GPU(0);
    config.samples_per_batch = batch;
    config.batch_slots = slots;
    config.max_gpu_bytes = gpu_bytes;
    config.max_host_bytes = UINT64_C(512) << 20;
    status = damacy_create(&config, out, &err);
    if (status) {
        snprintf(message, 384, "%s", err.message);
    }
    return status;
}

int t_push(damacy* d, const char* uri, const int64_t* begin, int64_t extent, char* message)
{
    damacy_sample sample = {0};
    damacy_error err;
    damacy_status status;
    sample.uri = uri;
    sample.rank = 3;
    for (int i = 0; i < 3; i++) {
        sample.box[i].begin = begin[i];
        sample.box[i].end = begin[i] + extent;
    }
    status = damacy_push(d, &sample, 1, NULL, &err);
    if (status) {
        snprintf(message, 384, "%s", err.message);
    }
    return status;
}

int t_pop(damacy* d, damacy_batch* batch, char* message)
{
    damacy_error err;
    const damacy_status status = damacy_pop(d, batch, &err);
    if (status) {
        snprintf(message, 384, "%s", err.message);
    }
    return status;
}

/* The tensor in the form before DLPack 1.0, which every PyTorch takes; the batch is released. */
int t_export(damacy_batch* batch, intptr_t stream, void** out, char* message)
{
    damacy_dl_managed* tensor = NULL;
    damacy_error err;
    const damacy_status status =
        damacy_batch_dlpack_legacy(*batch, (void*)stream, &tensor, &err);
    if (status) {
        snprintf(message, 384, "%s", err.message);
    }
    damacy_release(*batch);
    *out = tensor;
    return status;
}
"""


class Batch(ctypes.Structure):
    _fields_ = [("core", ctypes.c_void_p), ("id", ctypes.c_uint64)]


def skip(reason):
    print(f"1..0 # SKIP {reason}")
    sys.exit(0)


try:
    import torch
except ImportError:
    others = [p for p in (os.environ.get("DAMACY_PYTHON"), shutil.which("python3"), shutil.which("python"))
              if p and os.path.realpath(p) != os.path.realpath(sys.executable)]
    for other in others:
        if subprocess.run([other, "-c", "import torch"], capture_output=True).returncode == 0:
            os.execv(other, [other, *sys.argv])
    skip("no PyTorch")
if not torch.cuda.is_available():
    skip("PyTorch sees no CUDA device")
compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
if not compiler:
    skip("no C compiler")


def build(folder):
    (folder / "t.c").write_text(LIBRARY)
    subprocess.run([*compiler.split(), "-std=c11", "-O2", "-fPIC", "-shared", f"-I{ROOT}", str(folder / "t.c"),
                    "-o", str(folder / "libt.so"), "-ldl", "-lpthread", "-lm"], check=True)
    library = ctypes.CDLL(str(folder / "libt.so"))
    for name in ("t_create", "t_push", "t_pop", "t_export", "damacy_finish"):
        getattr(library, name).restype = ctypes.c_int
    library.damacy_destroy.restype = None
    return library


def compressed(bytes_):
    """A Zstandard frame, or None without libzstd."""
    try:
        zstd = ctypes.CDLL("libzstd.so.1")
    except OSError:
        return None
    zstd.ZSTD_compress.restype = ctypes.c_size_t
    zstd.ZSTD_compressBound.restype = ctypes.c_size_t
    room = zstd.ZSTD_compressBound(ctypes.c_size_t(len(bytes_)))
    out = ctypes.create_string_buffer(room)
    size = zstd.ZSTD_compress(out, ctypes.c_size_t(room), bytes_, ctypes.c_size_t(len(bytes_)), 3)
    return out.raw[:size]


def write_volume(folder, volume):
    """A Zarr v3 array of uint16; volume is a CPU tensor of int32."""
    has_zstd = compressed(b"x") is not None
    codecs = '{"name":"bytes","configuration":{"endian":"little"}}'
    if has_zstd:
        codecs += ',{"name":"zstd","configuration":{"level":3,"checksum":false}}'
    folder.mkdir()
    (folder / "zarr.json").write_text(
        '{"zarr_format":3,"node_type":"array","shape":[%d,%d,%d],"data_type":"uint16","chunk_grid":{"name":"regular",'
        '"configuration":{"chunk_shape":[%d,%d,%d]}},"chunk_key_encoding":{"name":"default","configuration":'
        '{"separator":"/"}},"fill_value":0,"codecs":[%s],"attributes":{}}'
        % (EXTENT, EXTENT, EXTENT, CHUNK, CHUNK, CHUNK, codecs))
    n = EXTENT // CHUNK
    for z in range(n):
        for y in range(n):
            (folder / "c" / str(z) / str(y)).mkdir(parents=True, exist_ok=True)
            for x in range(n):
                box = [slice(i * CHUNK, (i + 1) * CHUNK) for i in (z, y, x)]
                values = volume[box[0], box[1], box[2]].contiguous().flatten()
                raw = torch.stack((values & 255, values >> 8), 1).to(torch.uint8).flatten()
                raw = bytes(raw.tolist())
                (folder / "c" / str(z) / str(y) / str(x)).write_bytes(compressed(raw) if has_zstd else raw)


class Capsule:
    """A batch as the DLPack protocol of Python wants it."""

    new = ctypes.pythonapi.PyCapsule_New
    new.restype = ctypes.py_object
    new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    name = b"dltensor"  # capsules keep the pointer

    def __init__(self, library, batch):
        self.exporter, self.batch = library, batch

    def __dlpack_device__(self):
        return (2, 0)

    def __dlpack__(self, stream=None, **_):
        out, message = ctypes.c_void_p(), ctypes.create_string_buffer(384)
        status = self.exporter.t_export(ctypes.byref(self.batch), ctypes.c_ssize_t(0 if stream is None else int(stream)),
                                       ctypes.byref(out), message)
        if status:
            raise RuntimeError(f"status {status}: {message.value.decode()}")
        return Capsule.new(out, Capsule.name, None)


def epoch(library, uri, volume, seconds, streams, by_protocol, slots):
    """Streams batches for a while; the number of wrong ones, counted on the device."""
    d, message = ctypes.c_void_p(), ctypes.create_string_buffer(384)
    status = library.t_create(uri, BATCH, slots, ctypes.c_uint64(256 << 20), ctypes.byref(d), message)
    if status:
        raise RuntimeError(f"create: status {status}: {message.value.decode()}")
    chooser = random.Random(7)
    wrong = [torch.zeros((), dtype=torch.int64, device="cuda") for _ in streams]
    load = torch.randn(2048, 2048, device="cuda")
    torch.cuda.synchronize()
    queue, n_batches, n_pushed, last = [], 0, 0, None
    end = time.monotonic() + seconds
    while True:
        more = time.monotonic() < end or n_pushed % BATCH or n_batches < 8
        while more and len(queue) < 4 * BATCH:
            begin = [chooser.randrange(EXTENT - CROP + 1) for _ in range(3)]
            status = library.t_push(d, uri, (ctypes.c_int64 * 3)(*begin), ctypes.c_int64(CROP), message)
            if status:
                raise RuntimeError(f"push: status {status}: {message.value.decode()}")
            queue.append(begin)
            n_pushed += 1
        if not queue:
            break
        if len(queue) < BATCH:
            library.damacy_finish(d)
        batch = Batch()
        status = library.t_pop(d, ctypes.byref(batch), message)
        if status:
            raise RuntimeError(f"pop: status {status}: {message.value.decode()}")
        begins, queue = queue[:BATCH], queue[BATCH:]
        which = n_batches % len(streams)
        with torch.cuda.stream(streams[which]):
            source = Capsule(library, batch)
            if by_protocol:
                tensor = torch.from_dlpack(source)
            else:  # 1 is the legacy default stream
                handle = torch.cuda.current_stream().cuda_stream
                tensor = torch.utils.dlpack.from_dlpack(source.__dlpack__(stream=handle or 1))
            if tuple(tensor.shape) != (len(begins), CROP, CROP, CROP) or tensor.dtype != torch.float32:
                raise RuntimeError(f"a tensor of {tuple(tensor.shape)} {tensor.dtype}")
            for _ in range(3):  # the comparison waits behind this
                load = load @ load
                load = load / load.norm()
            for i, b in enumerate(begins):
                expected = volume[b[0]:b[0] + CROP, b[1]:b[1] + CROP, b[2]:b[2] + CROP]
                wrong[which] += (tensor[i] != expected).any().to(torch.int64)
            last = (tensor, begins)
            del tensor  # the deleter runs with the next batch, long before the kernels
        n_batches += 1
    library.damacy_finish(d)
    library.damacy_destroy(d)
    torch.cuda.synchronize()
    for i, b in enumerate(last[1]):  # it outlives the pipeline
        expected = volume[b[0]:b[0] + CROP, b[1]:b[1] + CROP, b[2]:b[2] + CROP]
        wrong[0] += (last[0][i] != expected).any().to(torch.int64)
    n_wrong = sum(int(w) for w in wrong)
    del last
    return n_batches, n_wrong


def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 5.0
    import torch.utils.dlpack  # noqa: F401
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        library = build(folder)
        number = torch.arange(EXTENT ** 3, dtype=torch.int64).reshape(EXTENT, EXTENT, EXTENT)
        volume = ((number * 7 + number // 4096) & 0xffff).to(torch.int32)
        write_volume(folder / "a.zarr", volume)
        on_device = volume.to(torch.float32).cuda()
        uri = str(folder / "a.zarr").encode()
        default = torch.cuda.default_stream()
        cases = [("the default stream", [default], True, 3),
                 ("a stream of its own", [torch.cuda.Stream()], True, 2),
                 ("a capsule on a stream of its own", [torch.cuda.Stream()], False, 2),
                 ("three streams in turn", [torch.cuda.Stream(), default, torch.cuda.Stream(priority=-1)], True, 4)]
        failed = 0
        for i, (what, streams, by_protocol, slots) in enumerate(cases):
            try:
                n_batches, n_wrong = epoch(library, uri, on_device, seconds, streams, by_protocol, slots)
                print(f"# {n_batches} batches, {n_wrong} wrong samples")
                good = n_wrong == 0
            except RuntimeError as error:
                print(f"# {error}")
                good = False
            failed += not good
            print(f"{'ok' if good else 'not ok'} {i + 1} - torch reads every voxel on {what}", flush=True)
        print(f"1..{len(cases)}")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
