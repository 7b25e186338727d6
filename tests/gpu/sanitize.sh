#!/bin/sh
# tests/gpu/sanitize.sh FOLDER [TOOL...]   the tests of a build folder under compute-sanitizer
#
# Runs a chosen small part of the GPU tests under memcheck, racecheck, initcheck and synccheck, one
# TAP result each, and ends with a table. Any finding fails, but for three kinds that are none, each
# of which sanitize.awk knows by tool, kind, function and threads, and proves; they are counted.
# Skips aloud without a device or the tool. SANITIZE_SECONDS (300) bounds each run, SANITIZE_JOBS
# (half the cores) run at a time; the logs stay in FOLDER/sanitize.
set -u
cd "$(dirname "$0")/../.." || exit 1
folder=${1:?usage: tests/gpu/sanitize.sh FOLDER [TOOL...]}
shift
[ $# -gt 0 ] || set -- memcheck racecheck initcheck synccheck
seconds=${SANITIZE_SECONDS:-300}
cores=$(nproc)
jobs=${SANITIZE_JOBS:-$(((cores + 1) / 2))}

sanitizer=
for candidate in compute-sanitizer /usr/local/cuda/bin/compute-sanitizer /opt/cuda/bin/compute-sanitizer; do
    command -v "$candidate" >/dev/null 2>&1 && sanitizer=$candidate && break
done
if [ -z "$sanitizer" ]; then
    echo "1..0 # SKIP no compute-sanitizer (CUDA toolkit)"
    exit 0
fi
DAMACY_TEST_SMALL=1
DAMACY_TEST_LINE_INFO=1
export DAMACY_TEST_SMALL DAMACY_TEST_LINE_INFO
probe=$("$folder/test_gpu_pipeline" too_little 2>&1)
case $probe in
*"# SKIP"*)
    echo "1..0 # SKIP $(echo "$probe" | sed -n 's/.*# SKIP //p' | head -1)"
    exit 0
    ;;
esac

# What runs under a tool: "program kernels filter..." a line; "-" means every kernel. racecheck
# follows each access to shared memory, so that it gets one family of kernels at a time. It does not
# follow bar.arrive, by which warps of damacy_zstd_fse hand over what they have: tests/simt/races.h
# does, in tests/kernel/test_zstd_fse.cpp.
cases() {
    if [ "$1" = racecheck ]; then
        for kernels in zstd_execute_1024 zstd_execute_256 zstd_execute_128 zstd_cut zstd_relay zstd_link \
            zstd_jump zstd_fse_few zstd_literals zstd_t zstd_place zstd_order zstd_finish; do
            echo "zstd $kernels small_wave"
        done
        for kernels in zstd_count zstd_fill zstd_order; do # parts by several blocks of threads
            echo "zstd $kernels many_small"
        done
        for kernels in zstd_cut zstd_place; do # frames that have a list of their own
            echo "zstd $kernels much_larger"
        done
        echo "codec lz4 decodes_lz4_and_blosc"
        echo "codec blosc decodes_lz4_and_blosc"
        echo "codec lz4 blosc_of_lz4" # planes by teams
        echo "codec blosc blosc_of_lz4"
        echo "codec lz4_relay large_blocks_of_lz4"
        for kernels in zstd_blosc_64 zstd_blosc_128x2 zstd_blosc_256x2 zstd_blosc_1024 zstd_blosc_fse_few; do
            echo "codec $kernels blosc_of_every_density"
        done
        echo "codec zstd_blosc_cut large_chunks"
        echo "pipeline assemble the_gpu_gives"
        return
    fi
    echo "pipeline - the_gpu_gives callers_context two_pipelines"
    echo "zstd - separate_allocations"
    echo "zstd - much_larger"
    echo "codec - decodes_lz4_and_blosc"
    echo "codec - blosc_of_lz4"
    echo "codec - large_blocks_of_lz4"
    echo "copies - have_arrived mapped_file"
    if [ "$1" = memcheck ]; then # the hostile frames, too
        echo "zstd - refuses_hostile"
        echo "codec - refuses_hostile_lz4"
        echo "codec - blosc_of_every_density"
        echo "codec - large_chunks"
    fi
}

# One case: its log, and a file with the result.
check() {
    tool=$1
    number=$2
    program=$3
    kernels=$4
    filters=$5
    log=$logs/$tool.$number.log
    options="--print-limit 100000"
    [ "$tool" = memcheck ] && options="--leak-check full --padding 256"
    if [ "$tool" = racecheck ]; then
        options="$options --racecheck-report hazard"
        DAMACY_TEST_SMALL=2
    fi
    case "$tool $kernels" in # of all kernels, and shapes of execution work in the last waves alone
    "racecheck lz4" | "racecheck blosc") options="$options --launch-count 6" ;;
    esac
    [ "$kernels" = - ] || options="$options --kernel-name kns=$kernels"
    begin=$(date +%s)
    # shellcheck disable=SC2086
    timeout "$seconds" "$sanitizer" --tool "$tool" $options "$folder/test_gpu_$program" $filters >"$log" 2>&1 </dev/null
    code=$?
    took=$(($(date +%s) - begin))
    tests=$(grep -c '^ok ' "$log")
    awk -v tool="$tool" -f tests/gpu/sanitize.awk "$log" >"$log.findings"
    known=$(sed -n 's/^# known: //p' "$log.findings")
    verdict=clean
    if [ $code -eq 124 ]; then
        verdict="no end after $seconds s"
    elif grep -qE '^not ok|# SKIP' "$log" || [ "$tests" -eq 0 ]; then
        verdict="a test failed or did not run"
    elif grep -qv '^# known: ' "$log.findings"; then
        verdict="findings"
    elif [ $code -ne 0 ]; then
        verdict="exit status $code"
    elif ! grep -q 'SUMMARY' "$log"; then
        verdict="no summary"
    elif grep 'LEAK SUMMARY' "$log" | grep -qE '[1-9][0-9]* bytes leaked'; then
        verdict="leaks"
    fi
    {
        if [ "$verdict" = clean ]; then
            echo "ok $number - $tool $program $kernels $filters"
        else
            grep -v '^# known: ' "$log.findings" | head -20 | sed 's/^/# /'
            grep -v '^# ok' "$log" | tail -12 | sed 's/^/# /'
            echo "not ok $number - $tool $program $kernels $filters"
        fi
        printf '# table: %-10s %-9s %-18s %3s tests %4s s  %s%s\n' "$tool" "$program" "$kernels" "$tests" "$took" \
            "$verdict" "${known:+, known: $known}"
    } >"$logs/result.$number"
}

logs=$folder/sanitize
mkdir -p "$logs"
rm -f "$logs"/result.*
number=0
for tool; do
    cases "$tool" >"$logs/cases"
    while read -r program kernels filters; do
        [ -x "$folder/test_gpu_$program" ] || continue
        number=$((number + 1))
        check "$tool" $number "$program" "$kernels" "$filters" &
        [ $((number % jobs)) -eq 0 ] && wait
    done <"$logs/cases"
done
wait
i=0
while [ $i -lt $number ]; do
    i=$((i + 1))
    grep -v '^# table: ' "$logs/result.$i"
done
cat "$logs"/result.* | sed -n 's/^# table: /# /p' | sort
echo "1..$number"
! cat "$logs"/result.* | grep -q '^not ok'
