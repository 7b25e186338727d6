#!/bin/sh
# The reference scenario, ours and the peer, on the same crops: bench/run.sh [--small] [--device=cpu|gpu]
# [--kind=...] [--codec=...] [--host-mb=...] [--cache-mb=...]; called by ./run bench, which sets BUILD (with bench_dataset and bench_pipeline)
# and DAMACY_PYTHON. The arrays are written once; both read a warm page cache, and
# both may keep as many bytes of decoded chunks (--cache-mb=0: none; default: what the budget leaves, room for all on a GPU).
set -eu
arrays=8 shape=512,512,512 shard=256,256,512 crop=128,128,128 batch=128 batches=50 warmup=5 lookahead=512
device=auto kind=half-random codec=zstd name=full memory=
for argument; do
    case $argument in
    --small) arrays=4 shape=256,256,256 shard=128,128,256 crop=64,64,64 batch=64 batches=40 lookahead=256 name=small ;;
    --device=*) device=${argument#*=} ;;
    --kind=*) kind=${argument#*=} ;;
    --codec=*) codec=${argument#*=} ;;
    --host-mb=* | --cache-mb=*) memory="$memory $argument" ;;
    --batches=*) batches=${argument#*=} ;;
    *) echo "bench: no such option: $argument" >&2; exit 2 ;;
    esac
done
data=$BUILD/bench-data/$name-$kind-$codec
"$BUILD/bench_dataset" "$data" --arrays=$arrays --shape=$shape --shard=$shard --kind=$kind --codec=$codec
find "$data" -type f -exec cat {} + >/dev/null # warms the page cache
scenario="--arrays=$arrays --crop=$crop --batch=$batch --batches=$batches --warmup=$warmup --lookahead=$lookahead"

echo "scenario $name: $kind $codec, $arrays arrays of $shape, batches of $batch crops of $crop, f32" >&2
echo "machine: $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1), $(nproc) CPUs$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -1 | sed 's/^/, /')" >&2
echo "damacy:" >&2
"$BUILD/bench_pipeline" "$data" $scenario $memory --device=$device >"$BUILD/bench-damacy.json"
if [ -z "${DAMACY_PYTHON:-}" ]; then
    echo "peer: skipped, no Python with tensorstore" >&2
    exit 0
fi
used=$(sed -n 's/.*"device":"\([a-z]*\)".*/\1/p' "$BUILD/bench-damacy.json")
if [ "$used" = gpu ] && ! "$DAMACY_PYTHON" -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
    echo "peer: no torch with CUDA here, so it delivers to host memory, which is less work" >&2
    used=cpu
fi
cache=$(sed -n 's/.*"cache_bytes":\([0-9]*\).*/\1/p' "$BUILD/bench-damacy.json")
"$DAMACY_PYTHON" -W ignore bench/peer_tensorstore.py "$data" $scenario --device=$used "--cache-bytes=$cache" >"$BUILD/bench-peer.json"
"$DAMACY_PYTHON" - "$BUILD" <<'END'
import json
import sys

ours, peer = (json.load(open(f"{sys.argv[1]}/bench-{name}.json")) for name in ("damacy", "peer"))
if ours["sum_first_batch"] != peer["sum_first_batch"]:
    sys.exit(f"bench: the first batches differ: {ours['sum_first_batch']} and {peer['sum_first_batch']}")
for name, figures in ((f"damacy ({ours['device']})", ours), (f"{peer['peer']} ({peer['device']})", peer)):
    print(f"{name:30}{figures['throughput_mb_s']:10.1f} MB/s, {figures['cache_bytes'] >> 20} MiB for decoded chunks")
print(f"ratio {ours['throughput_mb_s'] / peer['throughput_mb_s']:.2f} (first batches agree)")
END
