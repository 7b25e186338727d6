#!/usr/bin/env python3
"""Writes small stores with zarr-python and tensorstore, and what every voxel of them must be.

    make_stores.py FOLDER [--golden]     --golden: an eighth of the small ones

FOLDER/list.txt has one line per store, tab-separated:
    ok      path  dtype  extra-dtype  shape ("3,4"; "-" for rank 0)
    refuse  path  word that the error message of opening it must hold
    unreadable  path  word that the error message of reading it must hold
Beside each store lie its voxels in C order, little-endian: path.native, path.f32, path.bf16, path.f16, path.u8, path.extra.
The values are numpy's and the casts are computed here, from the rules, not by the library under test.
"""
import itertools
import json
import pathlib
import shutil
import sys

import ml_dtypes
import numpy as np
import tensorstore as ts
import zarr

BF16 = ml_dtypes.bfloat16
DTYPES = {"bool": np.bool_, "int8": np.int8, "int16": np.int16, "int32": np.int32, "int64": np.int64, "uint8": np.uint8,
          "uint16": np.uint16, "uint32": np.uint32, "uint64": np.uint64, "float16": np.float16, "float32": np.float32,
          "float64": np.float64, "bfloat16": BF16}

# ---- casts: one rounding to nearest even, clamping into integers, NaN keeps sign and top payload bits ----


def is_float(dtype):
    return np.dtype(dtype).kind == "f" or np.dtype(dtype) == BF16


def sticky_f64(x):
    """Integers as doubles whose last bit tells of lost ones, so that one later rounding is right."""
    if np.dtype(x.dtype).itemsize < 8:
        return x.astype(np.float64)
    negative = x < 0
    magnitude = np.where(negative, np.uint64(0) - x.astype(np.uint64), x.astype(np.uint64))
    short = (magnitude >> np.uint64(11)) | ((magnitude & np.uint64(0x7FF)) != 0).astype(np.uint64)
    exact = np.where(magnitude < np.uint64(1 << 53), magnitude.astype(np.float64), short.astype(np.float64) * 2048.0)
    return np.where(negative, -exact, exact)


def odd_f32(x):
    """Doubles to floats; what is not exact gets an odd last bit."""
    with np.errstate(over="ignore"):
        near = x.astype(np.float32)
    bits = near.view(np.uint32).copy()
    inexact = ~np.isnan(x) & (near.astype(np.float64) != x)
    bits[inexact & (np.abs(near.astype(np.float64)) > np.abs(x))] -= 1
    bits[inexact] |= 1
    return bits.view(np.float32)


def f32_to_bf16(x):
    bits = x.view(np.uint32)
    near = ((bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(x), ((bits >> 16) | 0x40).astype(np.uint16), near).view(BF16)


def cast(x, dtype):
    x = np.ascontiguousarray(x).reshape(-1)
    if x.dtype == dtype:
        return x
    if x.dtype == BF16:
        x = (x.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        if dtype == np.float32:
            return x
    if dtype == np.bool_:
        return x != 0
    if x.dtype == np.bool_:
        x = x.astype(np.uint8)
    if not is_float(dtype):
        limits = np.iinfo(dtype)
        if not is_float(x.dtype):
            own = np.iinfo(x.dtype)
            return np.clip(x, max(limits.min, own.min), min(limits.max, own.max)).astype(dtype)
        whole = np.trunc(np.where(np.isnan(x), 0, x).astype(np.float64))
        inside = (whole > limits.min) & (whole < float(limits.max) + (0 if np.dtype(dtype).itemsize == 8 else 1))
        return np.where(inside, np.where(inside, whole, 0).astype(dtype), np.where(whole > 0, limits.max, limits.min).astype(dtype))
    if dtype in (np.float32, np.float64):
        with np.errstate(over="ignore"):
            return x.astype(dtype)
    if x.dtype != np.float32:
        x = odd_f32(x.astype(np.float64) if is_float(x.dtype) else sticky_f64(x))
    with np.errstate(over="ignore"):
        return f32_to_bf16(x) if dtype == BF16 else x.astype(np.float16)


# ---- content ----


def content(name, shape, seed):
    """Compressible in places, random in others; every extreme of the type occurs if there is room."""
    rng = np.random.default_rng(seed)
    n = int(np.prod(shape))
    dtype = np.dtype(DTYPES[name])
    if name == "bool":
        x = rng.random(n) < 0.4
    elif is_float(dtype):
        x = np.where(rng.random(n) < 0.5, np.round(np.cumsum(rng.standard_normal(n))), rng.standard_normal(n) * 10.0 ** rng.integers(-8, 9, n))
        with np.errstate(over="ignore"):
            x = x.astype(np.float64 if dtype == np.float64 else np.float32).astype(dtype)
        special = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 6e-8, 65504, 1.5, -2.5, 2.0**24 + 1, 3e9, -3e9, 255.5]).astype(np.float32)
        x[rng.permutation(n)[:len(special)]] = special[:n].astype(dtype)
    else:
        limits = np.iinfo(dtype)
        steps = np.cumsum(rng.integers(0, 3, n)).astype(dtype)
        x = np.where(rng.random(n) < 0.5, steps, rng.integers(limits.min, limits.max, n, dtype=dtype, endpoint=True))
        special = np.array([limits.min, limits.max, limits.max // 2 + 1, 1, 0], dtype=dtype)
        x[rng.permutation(n)[:len(special)]] = special[:n]
    return x.reshape(shape)


# ---- codecs ----

CRC = {"name": "crc32c"}


def bytes_codec(name, endian="little"):
    return {"name": "bytes", "configuration": {"endian": endian}} if np.dtype(DTYPES[name]).itemsize > 1 else {"name": "bytes"}


def zstd(level, checksum=False):
    return {"name": "zstd", "configuration": {"level": level, "checksum": checksum}}


def gzip(level):
    return {"name": "gzip", "configuration": {"level": level}}


def blosc(cname, shuffle, typesize, clevel=5, blocksize=0):
    return {"name": "blosc", "configuration": {"cname": cname, "clevel": clevel, "shuffle": shuffle, "typesize": typesize,
                                               "blocksize": blocksize}}


def transpose(*order):
    return {"name": "transpose", "configuration": {"order": list(order)}}


def sharding(chunk, codecs, index=None, location="end"):
    little = {"name": "bytes", "configuration": {"endian": "little"}}
    return {"name": "sharding_indexed", "configuration": {"chunk_shape": list(chunk), "codecs": codecs,
                                                          "index_codecs": index or [little, CRC], "index_location": location}}


# ---- stores ----


class Maker:
    def __init__(self, folder, golden):
        self.folder, self.golden, self.lines, self.number, self.waiting = folder, golden, [], 0, []

    def skipped(self, shape):
        self.number += 1
        return self.golden and (self.number % 8 != 0 or np.prod(shape) > 6000)

    def expect(self, path, name, x):
        extra = list(DTYPES)[self.number % len(DTYPES)]
        flat = np.ascontiguousarray(x).reshape(-1)
        for suffix, y in (("native", flat), ("f32", cast(flat, np.float32)), ("bf16", cast(flat, BF16)),
                          ("f16", cast(flat, np.float16)), ("u8", cast(flat, np.uint8)), ("extra", cast(flat, DTYPES[extra]))):
            (self.folder / f"{path}.{suffix}").write_bytes(y.tobytes())
        shape = ",".join(map(str, x.shape)) or "-"
        self.lines.append(f"ok\t{path}\t{name}\t{extra}\t{shape}")

    def v3(self, what, name, shape, chunk, codecs, writer=None, fill=0, fill_value=None, written=None, keys=None, document_fill=None,
           unreadable=None):
        """One v3 array. written: the slices that are written, None for all. fill goes into the document, fill_value is
        what it means; document_fill replaces it in the document at the end. unreadable: reading must fail with this word."""
        if self.skipped(shape):
            return
        writer = writer or ("tensorstore" if name == "bfloat16" or self.number % 2 else "zarr")
        path = f"{self.number:04d}-{what}-{name}-{writer}"
        x = content(name, shape, self.number)
        if written is not None:
            kept, x = x, np.full(shape, x.dtype.type(fill) if fill_value is None else fill_value, x.dtype)
            x[written] = kept[written]
        document = {"zarr_format": 3, "node_type": "array", "shape": list(shape), "data_type": name,
                    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunk)}},
                    "chunk_key_encoding": keys or {"name": "default", "configuration": {"separator": "/"}},
                    "fill_value": fill if name != "bool" else bool(fill), "codecs": codecs, "attributes": {}}
        target = self.folder / path
        region = written if written is not None else (...,)
        if writer == "tensorstore":
            store = ts.open({"driver": "zarr3", "kvstore": {"driver": "file", "path": str(target)}, "metadata": document},
                            create=True).result()
            if x[region].size:
                store[region].write(x[region]).result()
        else:
            target.mkdir()
            (target / "zarr.json").write_text(json.dumps(document))
            array = zarr.open_array(target, mode="r+")
            if x[region].size:
                array[region] = x[region]
        if document_fill is not None:
            document = json.loads((target / "zarr.json").read_text())
            document["fill_value"] = document_fill
            (target / "zarr.json").write_text(json.dumps(document))
        if unreadable:
            self.lines.append(f"unreadable\t{path}\t{unreadable}")
        else:
            self.expect(path, name, x)

    def v2(self, what, name, shape, chunk, typestr=None, missing=False, **options):
        if self.skipped(shape):
            return
        path = f"{self.number:04d}-v2-{what}-{name}"
        x = content(name, shape, self.number)
        options.setdefault("fill_value", 0)
        array = zarr.create(shape=shape, chunks=chunk, dtype=typestr or DTYPES[name], store=self.folder / path, zarr_format=2, **options)
        if missing:
            x[chunk[0]:] = options["fill_value"] or 0
            array[:chunk[0]] = x[:chunk[0]]
        else:
            array[...] = x
        self.expect(path, name, x)

    def refuse(self, what, word, change, base=None):
        """A valid document whose feature is not covered."""
        self.number += 1
        path = f"{self.number:04d}-refuse-{what}"
        document = base or {"zarr_format": 3, "node_type": "array", "shape": [4, 4], "data_type": "uint16",
                            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 4]}},
                            "chunk_key_encoding": {"name": "default"}, "fill_value": 0, "codecs": [bytes_codec("uint16")]}
        document = {**document, **change}
        (self.folder / path).mkdir()
        (self.folder / path / ("zarr.json" if document["zarr_format"] == 3 else ".zarray")).write_text(json.dumps(document))
        self.lines.append(f"refuse\t{path}\t{word}")


def dtypes_and_codecs(make):
    shape, chunk = (9, 10, 7), (5, 6, 4)
    for name, dtype in DTYPES.items():
        size = np.dtype(dtype).itemsize
        chains = {"raw": [], "zstd0": [zstd(0)], "zstd3": [zstd(3)], "zstd3sum": [zstd(3, True)], "zstd19": [zstd(19)], "zstdminus": [zstd(-5)],
                  "gzip1": [gzip(1)], "gzip6": [gzip(6)], "gzip0": [gzip(0)], "crc": [CRC], "zstdcrc": [zstd(1), CRC], "crczstd": [CRC, zstd(1)],
                  "gzipzstd": [gzip(5), zstd(1)], "crccrc": [CRC, CRC]}
        for cname, shuffle in itertools.product(("zstd", "lz4", "lz4hc", "zlib"), ("noshuffle", "shuffle", "bitshuffle")):
            chains[f"blosc-{cname}-{shuffle}"] = [blosc(cname, shuffle, size)]
        for index, (what, chain) in enumerate(chains.items()):
            endian = "big" if size > 1 and index % 3 == 1 else "little"
            make.v3(f"{what}-{endian}", name, shape, chunk, [bytes_codec(name, endian), *chain])
        if size > 1:
            make.v3("raw-big", name, shape, chunk, [bytes_codec(name, "big")])


def blocks(make):
    """Chunks of several blocks: blosc with block sizes that do not divide them, zstd beyond 128 KiB."""
    for name in ("uint8", "uint16", "float32", "float64"):
        size = np.dtype(DTYPES[name]).itemsize
        for cname, shuffle, blocksize in itertools.product(("zstd", "lz4", "zlib"), ("noshuffle", "shuffle", "bitshuffle"), (0, 1024, 4096)):
            make.v3(f"blocks-{cname}-{shuffle}-{blocksize}", name, (9999,), (9999,),
                    [bytes_codec(name), blosc(cname, shuffle, size, 3, blocksize)])
        for typesize in (1, 3, 4, 16, 255):
            make.v3(f"typesize{typesize}", name, (5003,), (5003,), [bytes_codec(name), blosc("lz4", "shuffle", typesize, 5, 2048)])
            make.v3(f"typesize{typesize}bit", name, (5003,), (5003,), [bytes_codec(name), blosc("zstd", "bitshuffle", typesize, 5, 2048)])
        for level in (1, 3, 9):
            make.v3(f"bigzstd{level}", name, (70, 70, 70), (64, 64, 64), [bytes_codec(name), zstd(level)])
        make.v3("level0", name, (9999,), (5000,), [bytes_codec(name), blosc("zstd", "shuffle", size, 0)])


def transposes(make):
    u2 = bytes_codec("uint16")
    for order in itertools.permutations(range(3)):
        make.v3("transpose" + "".join(map(str, order)), "uint16", (9, 10, 7), (5, 6, 4), [transpose(*order), u2, zstd(1)])
        for second in ((1, 2, 0), (0, 2, 1)):
            make.v3("transposes" + "".join(map(str, order + second)), "int32", (9, 10, 7), (5, 6, 4),
                    [transpose(*order), transpose(*second), bytes_codec("int32", "big")])
        make.v3("shard-transpose" + "".join(map(str, order)), "uint16", (9, 11, 13), (8, 8, 12),
                [sharding((4, 2, 3), [transpose(*order), u2, zstd(1)])])
        # Equal edges: zarr-python compares them before it permutes. No chunk outside the array: it stumbles there.
        make.v3("transpose-shard" + "".join(map(str, order)), "uint16", (8, 16, 24), (8, 8, 8),
                [transpose(*order), sharding((4, 4, 4), [u2, zstd(1)])], writer="zarr")
        if order in ((0, 1, 2), (0, 2, 1), (1, 0, 2), (2, 1, 0)):
            permuted = [(4, 2, 3)[axis] for axis in order]
            make.v3("transpose-shard-uneven" + "".join(map(str, order)), "uint16", (9, 11, 13), (8, 8, 12),
                    [transpose(*order), sharding(permuted, [u2, zstd(1)])], writer="tensorstore")
    for order in ((3, 0, 1, 2), (1, 2, 3, 0), (2, 3, 1, 0)):
        make.v3("transpose" + "".join(map(str, order)), "float32", (3, 5, 4, 6), (2, 3, 4, 5), [transpose(*order), bytes_codec("float32")])


def shards(make):
    u2 = bytes_codec("uint16")
    little, big = ({"name": "bytes", "configuration": {"endian": endian}} for endian in ("little", "big"))
    inner = {"raw": [u2], "zstd": [u2, zstd(3)], "zstdcrc": [u2, zstd(1), CRC], "blosc": [u2, blosc("zstd", "shuffle", 2)],
             "lz4": [u2, blosc("lz4", "bitshuffle", 2)], "gzip": [u2, gzip(5)], "big": [bytes_codec("uint16", "big"), zstd(1)]}
    for location, (crc, index) in itertools.product(("start", "end"), (("crc", [little, CRC]), ("nocrc", [little]), ("bigindex", [big, CRC]))):
        for what, chain in inner.items():
            make.v3(f"shard-{location}-{crc}-{what}", "uint16", (18, 17), (12, 10), [sharding((4, 5), chain, index, location)])
        make.v3(f"shard-{location}-{crc}-missing", "uint16", (18, 17), (12, 10), [sharding((4, 5), inner["zstd"], index, location)],
                fill=9, written=np.s_[3:8, 0:5])
    for name in DTYPES:
        make.v3("shard", name, (18, 17), (12, 10), [sharding((4, 5), [bytes_codec(name), zstd(1)])])
    for what, around in (("zstd", zstd(1)), ("crc", CRC), ("gzip", gzip(1))):  # tensorstore refuses these
        for location in ("start", "end"):
            make.v3(f"shard-{location}-in-{what}", "uint16", (24, 20), (12, 10), [sharding((4, 5), inner["raw"], None, location), around],
                    writer="zarr")
    for location in ("start", "end"):
        nested = [sharding((2, 5), inner["zstd"], None, location)]
        make.v3(f"nested-{location}", "uint16", (18, 17), (12, 10), [sharding((4, 5), nested, None, location)], writer="tensorstore")
        make.v3(f"nested-missing-{location}", "uint16", (18, 17), (12, 10), [sharding((4, 5), nested, None, location)],
                writer="tensorstore", fill=7, written=np.s_[2:5, 1:9])
    make.v3("nested-transpose", "uint16", (18, 17), (12, 10), [sharding((4, 5), [transpose(1, 0), sharding((5, 2), inner["zstd"])])],
            writer="tensorstore")
    make.v3("nested-in-zstd", "uint16", (24, 20), (12, 10), [sharding((4, 5), [sharding((4, 1), inner["raw"]), zstd(1)])], writer="zarr")
    make.v3("shard-one-chunk", "uint16", (7, 7), (4, 4), [sharding((4, 4), inner["zstd"])])
    make.v3("shard-whole-array", "uint8", (20, 20, 20), (32, 32, 32), [sharding((4, 4, 4), [bytes_codec("uint8"), zstd(1)])])


def layouts(make):
    shapes = {0: ((), ()), 1: ((13,), (5,)), 2: ((7, 9), (3, 4)), 3: ((5, 6, 7), (2, 3, 4)), 4: ((3, 4, 5, 3), (2, 2, 3, 2)),
              5: ((2, 3, 2, 4, 3), (1, 2, 2, 3, 2))}
    encodings = [{"name": name, "configuration": {"separator": separator}} for name in ("default", "v2") for separator in "./"]
    for rank, (shape, chunk) in shapes.items():
        for number, keys in enumerate([*encodings, {"name": "default"}, {"name": "v2"}]):
            writer = "tensorstore" if "configuration" not in keys or rank == 0 else None
            make.v3(f"keys{number}-rank{rank}", "int16", shape, chunk, [bytes_codec("int16"), zstd(1)], keys=keys, writer=writer)
    for what, shape, chunk in (("exact", (8, 8), (4, 4)), ("onemore", (9, 9), (4, 4)), ("oneless", (7, 7), (4, 4)), ("larger", (3, 5), (16, 16)),
                               ("single", (1, 1, 1), (1, 1, 1)), ("thin", (1, 50, 1), (1, 7, 1)), ("ones", (5, 3), (1, 1)), ("long", (100000,), (33333,)),
                               ("row", (4, 1000), (1, 1000)), ("column", (1000, 4), (1000, 1))):
        for name in ("uint8", "float64"):
            make.v3(what, name, shape, chunk, [bytes_codec(name), zstd(1)], fill=7)  # zarr-python drops a chunk that is one -0.0 if 0 is the fill
            make.v3(what + "-blosc", name, shape, chunk, [bytes_codec(name), blosc("lz4", "shuffle", np.dtype(DTYPES[name]).itemsize)], fill=7)
    for shape, chunk in (((0,), (4,)), ((3, 0, 2), (2, 2, 2)), ((0, 0), (1, 1))):
        make.v3("empty", "uint16", shape, chunk, [bytes_codec("uint16")])


def fills(make):
    shape, chunk = (9, 10), (4, 4)

    def fill(what, name, document_fill, bits):
        """bits: the fill value's, in the type. Once nothing is stored, once some chunks, and once by a writer that knows
        the fill value and pads the chunks it touches with it."""
        value = np.frombuffer(int(bits).to_bytes(np.dtype(DTYPES[name]).itemsize, "little"), DTYPES[name])[0]
        common = {"name": name, "shape": shape, "chunk": chunk, "codecs": [bytes_codec(name), zstd(1)], "fill_value": value}
        make.v3(f"fill-{what}-all", **common, written=np.s_[0:0, 0:0], document_fill=document_fill)
        make.v3(f"fill-{what}-some", **common, written=np.s_[4:8, 0:8], document_fill=document_fill)
        if not str(document_fill).startswith("0x"):
            make.v3(f"fill-{what}-known", **common, written=np.s_[3:6, 1:9], fill=document_fill, writer="tensorstore")

    for name in DTYPES:
        size = np.dtype(DTYPES[name]).itemsize * 8
        if name == "bool":
            fill("true", name, True, 1)
        elif is_float(DTYPES[name]):
            width = {"float16": 10, "bfloat16": 7, "float32": 23, "float64": 52}[name]
            infinity = ((1 << (size - 1 - width)) - 1) << width
            quiet = infinity | 1 << (width - 1)
            tenth = int.from_bytes(np.array([0.1]).astype(DTYPES[name]).tobytes(), "little")
            for what, document_fill, bits in (("nan", "NaN", quiet), ("inf", "Infinity", infinity), ("minuszero", -0.0, 1 << (size - 1)),
                                              ("minusinf", "-Infinity", infinity | 1 << (size - 1)), ("tenth", 0.1, tenth)):
                fill(what, name, document_fill, bits)
            for bits in (quiet | 5, 1):  # a NaN with a payload, the smallest subnormal
                fill("hex", name, f"0x{bits:0{size // 4}x}", bits)
        else:
            limits = np.iinfo(DTYPES[name])
            for value in (limits.max, limits.min, 7):
                fill(str(value).replace("-", "m"), name, int(value), int(value) % (1 << size))


def v2(make):
    import numcodecs

    compressors = {"none": None, "zstd": numcodecs.Zstd(3), "gzip": numcodecs.GZip(5), "zlib": numcodecs.Zlib(1), "lz4": numcodecs.LZ4(),
                   **{f"blosc-{cname}{shuffle}": numcodecs.Blosc(cname, 5, shuffle) for cname in ("lz4", "zstd", "zlib", "lz4hc")
                      for shuffle in (0, 1, 2)}, "blosc-auto": numcodecs.Blosc("lz4", 5, -1)}
    for what, compressor in compressors.items():
        for name in ("uint8", "uint16", "float32"):
            make.v2(what, name, (9, 10, 7), (5, 6, 4), compressor=compressor, filters=None)
    for name in DTYPES:
        if name != "bfloat16":
            typestr = np.dtype(DTYPES[name]).newbyteorder(">").str
            make.v2("big", name, (9, 10), (5, 4), typestr=typestr, compressor=None, filters=None)
            make.v2("forder", name, (9, 10, 7), (5, 6, 4), order="F", compressor=numcodecs.Zstd(1), filters=None, dimension_separator="/")
            make.v2("missing", name, (9, 10), (5, 4), missing=True, fill_value=1, compressor=numcodecs.Blosc("lz4", 5, 1), filters=None)
    make.v2("null", "uint16", (9, 10), (5, 4), missing=True, fill_value=None, compressor=None, filters=None)
    make.v2("rank1", "uint16", (19,), (5,), compressor=None, filters=None, dimension_separator="/")


def refusals(make):
    u2 = bytes_codec("uint16")
    for dtype in ("complex64", "complex128", "r24", "float8_e4m3", "int4", "string"):
        make.refuse(dtype, dtype, {"data_type": dtype, "fill_value": [0, 0] if "complex" in dtype else 0})
    make.refuse("datetime", "numpy.datetime64", {"data_type": {"name": "numpy.datetime64", "configuration": {"unit": "s", "scale_factor": 1}}})
    for codec in ("zfp", "numcodecs.pcodec", "numcodecs.delta", "packbits"):
        make.refuse(codec, codec, {"codecs": [{"name": codec, "configuration": {}}, u2] if "delta" in codec else [{"name": codec, "configuration": {}}]})
    make.refuse("bz2", "numcodecs.bz2", {"codecs": [u2, {"name": "numcodecs.bz2", "configuration": {"level": 1}}]})
    make.refuse("rectilinear", "rectilinear", {"chunk_grid": {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": [[4], [4]]}}})
    make.refuse("keys", "zarrs.default_suffix", {"chunk_key_encoding": {"name": "zarrs.default_suffix", "configuration": {}}})
    make.refuse("transformer", "transformer", {"storage_transformers": [{"name": "indirection", "configuration": {}}]})
    make.refuse("member", "frobnicate", {"frobnicate": {"must_understand": True}})
    two = {"zarr_format": 2, "shape": [4], "chunks": [4], "dtype": "<u2", "compressor": None, "fill_value": 0, "order": "C", "filters": None}
    make.refuse("v2-bz2", "bz2", {"compressor": {"id": "bz2", "level": 1}}, two)
    make.refuse("v2-lzma", "lzma", {"compressor": {"id": "lzma", "format": 1}}, two)
    make.refuse("v2-fixed", "fixedscaleoffset", {"filters": [{"id": "fixedscaleoffset", "scale": 1, "offset": 0, "dtype": "<f4"}]}, two)
    make.refuse("v2-complex", "<c8", {"dtype": "<c8"}, two)
    make.refuse("v2-text", "<U4", {"dtype": "<U4", "fill_value": ""}, two)
    # The inner codec of blosc is known only from the chunks.
    for clevel in (3, 5, 9):  # one voxel in a chunk of zeros, so that it is really compressed
        make.v3(f"blosclz{clevel}", "uint16", (50, 50), (50, 50), [u2, blosc("blosclz", "shuffle", 2, clevel)],
                written=np.s_[0:1, 0:1], unreadable="blosclz")


def main():
    folder = pathlib.Path(sys.argv[1]).resolve()  # tensorstore refuses ".."
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    make = Maker(folder, "--golden" in sys.argv)
    for group in (dtypes_and_codecs, blocks, transposes, shards, layouts, fills, v2, refusals):
        before = len(make.lines)
        group(make)
        print(f"# {group.__name__}: {len(make.lines) - before} stores", flush=True)
    (folder / "list.txt").write_text("".join(f"{line}\n" for line in make.lines))


main()
