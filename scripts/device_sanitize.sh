#!/usr/bin/env bash
# compute-sanitizer over tests/device/test_short_life.py: every kernel of serving, briefly.
#   scripts/device_sanitize.sh                       memcheck, initcheck, synccheck, racecheck
#   scripts/device_sanitize.sh memcheck racecheck    these alone
# The tests are cut into parts, each in a process of its own, JOBS (12) at a time and for at most LIMIT (60)
# seconds: a tool rewrites every kernel as it is loaded, which takes longer than running it.  Prints a line
# for each part and exits with 1 unless all are clean; reports are kept in LOGS.
# The one thing a reader would get wrong: under memcheck and initcheck every array is an allocation of its own
# (NINFER_TEST_ALLOCATE), as the product's are not, so that the end of each is known.
set -uo pipefail
cd "$(dirname "$0")/.."
export PYTHONUNBUFFERED=1 OPENBLAS_NUM_THREADS=1 PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
export LOGS=${LOGS:-$(mktemp -d)} LIMIT=${LIMIT:-60}
mkdir -p "$LOGS"

check() {  # TOOL PART: a part is an expression that selects tests
    local tool=$1 part=$2 begun=$SECONDS code summary tests options=(--error-exitcode 9 --print-limit 20)
    local log="$LOGS/$tool-${part//[^a-z0-9]/_}.txt"
    case $tool in
    memcheck) options+=(--padding 256); export NINFER_TEST_ALLOCATE=each ;;
    initcheck) export NINFER_TEST_ALLOCATE=raw ;;
    esac
    timeout "$LIMIT" compute-sanitizer --tool "$tool" "${options[@]}" python3 -m pytest -x --timeout=600 \
        tests/device/test_short_life.py -m cuda -o addopts= -p no:benchmark -p no:cacheprovider \
        -o faulthandler_timeout=$((LIMIT - 5)) -k "$part" >"$log" 2>&1
    code=$?
    summary=$(grep -E '(ERROR|RACECHECK) SUMMARY' "$log" | tail -1 | sed 's/^=* *//')
    tests=$(grep -E ' in [0-9.]+s' "$log" | grep -oE '[0-9]+ (passed|failed|errors?)' | tail -1)
    [[ $code == 124 ]] && summary="not done after $LIMIT s"
    echo "$tool, $part: ${summary:-exit code $code} | ${tests:-no test ended} | $((SECONDS - begun)) s"
    [[ $code == 0 && $tests == *passed && $summary == *"SUMMARY: 0 "* ]]
}
export -f check

parts() {  # TOOL: racecheck is slow, so it gets small parts
    echo weight_format
    [[ $1 == racecheck ]] || { printf '%s\n' "test_life and moe" "test_life and not moe"; return; }
    for kind in bf16 int8 fp8 nvfp4 k8v4; do
        printf '%s\n' "test_life and moe and $kind" "test_life and not moe and $kind"
    done
}

tools=("$@")
[[ $# == 0 ]] && tools=(racecheck memcheck initcheck synccheck)
for tool in "${tools[@]}"; do
    parts "$tool" | while read -r part; do printf '%s\0%s\0' "$tool" "$part"; done
done | xargs -0 -n 2 -P "${JOBS:-12}" bash -c 'check "$@"' check
status=$?
echo "reports: $LOGS"
exit $((status != 0))
