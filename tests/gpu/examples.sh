#!/bin/sh
# tests/gpu/examples.sh FOLDER   the examples and the tool of a build folder on the GPU and the CPU
#
# Writes the demo's volumes to FOLDER/examples-data and says for each program, one TAP result each,
# whether what it gives on the GPU equals what it gives on the CPU: losses of a network step by step,
# batches taken by a program of the CUDA runtime, frames of the codec, voxels of `damacy cat`.
set -u
cd "$(dirname "$0")/../.." || exit 1
folder=${1:?usage: tests/gpu/examples.sh FOLDER}
data=$folder/examples-data
root=$data/organoid.zarr
number=0
failed=0

# claim NAME STATUS: one result; what the last command printed is shown when it failed.
claim() {
    number=$((number + 1))
    if [ "$2" -eq 0 ]; then
        echo "ok $number - $1"
    else
        failed=1
        sed 's/^/# /' "$data/log" | head -20
        echo "not ok $number - $1"
    fi
}

skip() {
    number=$((number + 1))
    echo "ok $number - $1 # SKIP $2"
}

mkdir -p "$data"
"$folder/tools_demo" "$data" >"$data/log" 2>&1
code=$?
if ! grep -q 'to the GPU' "$data/log"; then
    "$folder/tools_damacy" cat "$root/nuclei" --device cuda --box 0:1,0:1,0:1 -o "$data/none" 2>"$data/log"
    echo "1..0 # SKIP $(head -c 200 "$data/log" | tr '\n' ' ')"
    exit 0
fi
[ $code -eq 0 ] && grep -q ' 0 differ' "$data/log"
claim "demo: crops on the GPU are what the formula says" $?

for device in cpu 0; do
    "$folder/examples_train" --steps "${TRAIN_STEPS:-60}" --seed 3 --device $device "$root/nuclei" >"$data/log" 2>&1 &&
        sed -n 's/^\(step .* loss [^,]*\),.*/\1/p' "$data/log" >"$data/losses-$device"
done
[ "$(wc -l <"$data/losses-0")" -ge 3 ] && cmp "$data/losses-cpu" "$data/losses-0" >>"$data/log" 2>&1
claim "train: losses of $(wc -l <"$data/losses-0") lines are equal digit by digit, the last $(tail -1 "$data/losses-0")" $?

if [ -x "$folder/examples_runtime" ]; then
    "$folder/examples_runtime" "$root/nuclei" >"$data/log" 2>&1 && grep -q ': the same as on the CPU' "$data/log"
    claim "runtime: $(head -1 "$data/log")" $?
else
    skip runtime "built without the CUDA toolkit"
fi

"$folder/examples_codec" >"$data/log" 2>&1 && [ "$(grep -c 'every byte as it was' "$data/log")" -eq 2 ]
claim "codec: $(tail -1 "$data/log")" $?

for volume in nuclei membranes; do
    for form in 'native raw' 'f32 raw' 'bf16 raw' 'native npy --box 3:77,100:500,1:511' \
        'f32 npy --level 1'; do
        # shellcheck disable=SC2086
        set -- $form
        dtype=$1
        kind=$2
        shift 2
        rm -f "$data/cpu.$kind" "$data/cuda.$kind"
        for device in cpu cuda; do
            "$folder/tools_damacy" cat "$root/$volume" --dtype "$dtype" "$@" --device $device -o "$data/$device.$kind" \
                >"$data/log" 2>&1
        done
        cmp "$data/cpu.$kind" "$data/cuda.$kind" >>"$data/log" 2>&1
        claim "cat: $(wc -c <"$data/cuda.$kind") bytes of $volume, $dtype.$kind $* are equal" $?
    done
done

"$folder/tools_damacy" cat "$root" --device cuda -o "$data/none" >"$data/log" 2>&1
[ $? -eq 1 ] && grep -q 'below it lie membranes, nuclei' "$data/log"
claim "cat: a group that is no image names what lies below it" $?
rm -rf "$data"
echo "1..$number"
exit $failed
