#!/bin/sh
# tests/gpu/sanitize.sh FOLDER [TOOL...]   the tests of a build folder under compute-sanitizer
#
# Runs a chosen small part of the GPU tests under memcheck, racecheck, initcheck and synccheck, one
# TAP result each, and ends with a table. Any finding fails. Skips aloud without a device or the
# tool. SANITIZE_SECONDS (300) bounds each run; the logs stay in FOLDER/sanitize.
set -u
cd "$(dirname "$0")/../.."
folder=${1:?usage: tests/gpu/sanitize.sh FOLDER [TOOL...]}
shift
[ $# -gt 0 ] || set -- memcheck racecheck initcheck synccheck
seconds=${SANITIZE_SECONDS:-300}

sanitizer=
for candidate in compute-sanitizer /usr/local/cuda/bin/compute-sanitizer /opt/cuda/bin/compute-sanitizer; do
    command -v "$candidate" >/dev/null 2>&1 && sanitizer=$candidate && break
done
if [ -z "$sanitizer" ]; then
    echo "1..0 # SKIP no compute-sanitizer (CUDA toolkit)"
    exit 0
fi
DAMACY_TEST_SMALL=1
export DAMACY_TEST_SMALL
probe=$("$folder/test_gpu_pipeline" too_little 2>&1)
case $probe in
*"# SKIP"*)
    echo "1..0 # SKIP $(echo "$probe" | sed -n 's/.*# SKIP //p' | head -1)"
    exit 0
    ;;
esac

# What runs under a tool: "program filter..." a line. memcheck also sees the hostile frames.
cases() {
    echo "pipeline the_gpu_gives callers_context two_pipelines"
    echo "zstd separate_allocations"
    echo "codec decodes_lz4_and_blosc"
    if [ "$1" = memcheck ]; then
        echo "zstd refuses_hostile"
        echo "codec refuses_hostile_lz4"
    fi
}

logs=$folder/sanitize
mkdir -p "$logs"
table=$logs/table
number=0
failed=0
: >"$table"
for tool; do
    options=
    [ "$tool" = memcheck ] && options="--leak-check full --padding 256"
    [ "$tool" = racecheck ] && options="--racecheck-report all"
    cases "$tool" >"$logs/cases"
    while read -r program filters; do
        [ -x "$folder/test_gpu_$program" ] || continue
        number=$((number + 1))
        log=$logs/$tool.$number.log
        begin=$(date +%s)
        # shellcheck disable=SC2086
        timeout "$seconds" "$sanitizer" --tool "$tool" $options --print-limit 20 --error-exitcode 9 \
            "$folder/test_gpu_$program" $filters >"$log" 2>&1 </dev/null
        code=$?
        took=$(($(date +%s) - begin))
        tests=$(grep -c '^ok ' "$log")
        summary=$(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY|LEAK SUMMARY' "$log" | sed 's/^=* *//' | tr '\n' ';')
        verdict=clean
        if [ $code -eq 124 ]; then
            verdict="no end after $seconds s"
        elif [ $code -ne 0 ]; then
            verdict="exit status $code"
        elif grep -qE '^not ok|# SKIP' "$log" || [ "$tests" -eq 0 ]; then
            verdict="a test failed or did not run"
        elif grep -E 'SUMMARY' "$log" | grep -qE ' [1-9][0-9]* (error|hazard|byte)|[1-9][0-9]* bytes leaked'; then
            verdict="findings"
        elif ! grep -q 'SUMMARY' "$log"; then
            verdict="no summary"
        fi
        if [ "$verdict" = clean ]; then
            echo "ok $number - $tool $program $filters"
        else
            failed=1
            sed 's/^/# /' "$log" | grep -v '^# ok' | head -40
            echo "not ok $number - $tool $program $filters"
        fi
        printf '%-10s %-9s %5s tests %5s s  %s  %s\n' "$tool" "$program" "$tests" "$took" "$verdict" "$summary" >>"$table"
    done <"$logs/cases"
done
sed 's/^/# /' "$table"
echo "1..$number"
exit $failed
