#!/usr/bin/env python3
"""The same crops of the same arrays as bench/pipeline.c, read with tensorstore: the same figure.

    peer_tensorstore.py DIR [--arrays=8] [--crop=128,128,128] [--batch=128] [--batches=50] [--warmup=5]
                        [--seed=1234] [--lookahead=512] [--threads=0] [--device=cpu|gpu]
                        [--cache-bytes=0]

tensorstore reads, decodes, casts to f32 and copies into the batch on its own threads; up to `lookahead`
crops are under way at once. Its cache of decoded chunks has --cache-bytes, and what it holds is not compared with the
files again. With --device=gpu each batch is copied to the GPU through torch, from pinned
memory, while the next one is made. JSON on stdout.
"""
import argparse
import importlib.metadata
import json
import os
import sys
import time

import numpy as np
import tensorstore as ts


def crops(options, shape):
    mask = (1 << 64) - 1
    state = options.seed

    def draw():
        nonlocal state
        state ^= state >> 12
        state ^= (state << 25) & mask
        state ^= state >> 27
        return (state * 2685821657736338717) & mask

    for _ in range((options.warmup + options.batches) * options.batch):
        array = draw() % options.arrays
        yield array, tuple(draw() % (length - extent + 1) for length, extent in zip(shape, options.crop))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--crop", type=lambda text: tuple(map(int, text.split(","))), default=(128, 128, 128))
    parser.add_argument("--device", default="cpu")
    for name, default in (("arrays", 8), ("batch", 128), ("batches", 50), ("warmup", 5), ("seed", 1234), ("lookahead", 512), ("threads", 0), ("cache-bytes", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()

    threads = options.threads or len(os.sched_getaffinity(0))
    context = ts.Context({"cache_pool": {"total_bytes_limit": options.cache_bytes}, "data_copy_concurrency": {"limit": threads},
                          "file_io_concurrency": {"limit": max(threads, 8)}})
    folder = os.path.abspath(options.folder)
    arrays = [ts.open({"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{folder}/z{i:03d}/scale0/image/"}, "recheck_cached_data": "open", "recheck_cached_metadata": "open"},
                      context=context, read=True).result() for i in range(options.arrays)]
    shape = arrays[0].shape
    item_size = arrays[0].dtype.numpy_dtype.itemsize
    arrays = [ts.cast(array, ts.float32) for array in arrays]

    slots = max(2, -(-options.lookahead // options.batch) + 1)
    torch = None
    if options.device == "gpu":
        import torch
        host = [torch.empty((options.batch, *options.crop), dtype=torch.float32, pin_memory=True) for _ in range(slots)]
        device = [torch.empty_like(buffer, device="cuda") for buffer in host[:2]]
        buffers = [ts.array(buffer.numpy()) for buffer in host]
    else:
        buffers = [ts.array(np.zeros((options.batch, *options.crop), np.float32)) for _ in range(slots)]

    source = crops(options, shape)
    futures, issued, total = {}, 0, (options.warmup + options.batches) * options.batch
    total_batches = options.warmup + options.batches
    sum_first = None
    begin = time.monotonic()
    for done in range(total_batches):
        if done == options.warmup:
            begin = time.monotonic()
        # A slot is free again once its batch was handed over.
        while issued < total and issued // options.batch < done + slots - (1 if torch else 0) and issued < done * options.batch + max(options.lookahead, options.batch):
            array, at = next(source)
            box = tuple(slice(start, start + extent) for start, extent in zip(at, options.crop))
            target = buffers[issued // options.batch % slots][issued % options.batch]
            futures[issued] = target.write(arrays[array][box].translate_to[0])
            issued += 1
        for i in range(done * options.batch, (done + 1) * options.batch):
            futures.pop(i).result()
        if torch:
            torch.cuda.synchronize()
            device[done % 2].copy_(host[done % slots], non_blocking=True)
        if done == 0:
            sum_first = float(np.asarray(buffers[0].read().result()).sum(dtype=np.float64))
            if options.warmup == 0:
                begin = time.monotonic()
    if torch:
        torch.cuda.synchronize()
    wall = time.monotonic() - begin
    voxels = options.batches * options.batch * int(np.prod(options.crop))
    json.dump({"peer": "tensorstore " + importlib.metadata.version("tensorstore"),
               "device": options.device, "threads": threads, "cache_bytes": options.cache_bytes, "wall_ms": wall * 1e3, "sum_first_batch": sum_first,
               "source_mb_s": voxels * item_size / 1e6 / wall, "throughput_mb_s": voxels * 4 / 1e6 / wall}, sys.stdout, indent=2)
    print()


main()
