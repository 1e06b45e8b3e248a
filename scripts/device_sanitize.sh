#!/usr/bin/env bash
# compute-sanitizer over every kernel of serving, briefly.
#   scripts/device_sanitize.sh                       racecheck, memcheck, synccheck
#   scripts/device_sanitize.sh memcheck initcheck    these alone
# Each part runs in a process of its own, JOBS (24) at a time and for at most LIMIT (40) seconds, since a tool
# rewrites every kernel as it is loaded, which takes longer than running it.  Short lives of both bundled
# models (tests/device/test_short_life.py) are watched for memory and barriers; races, which take longest, are
# sought in the suites' small cases.  Prints a line for each part, more for one that is not clean, and then exits
# with 1; reports are kept in LOGS.
# For races some kernels run in a build in which every lane arrives at a barrier, not one for its warp, and none
# rehearses (NINFER_TEST_WATCHED): the tool knows neither that a warp's barrier orders its lanes nor who meets at a
# named barrier.
# The one thing a reader would get wrong: every array is an allocation of its own here (NINFER_TEST_ALLOCATE),
# as the product's are not: memcheck then knows where each ends, and many processes fit on one card.
set -uo pipefail
cd "$(dirname "$0")/.."
export PYTHONUNBUFFERED=1 OPENBLAS_NUM_THREADS=1 PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
export LOGS=${LOGS:-$(mktemp -d)} LIMIT=${LIMIT:-40}
export NINFER_TEST_ALLOCATE=each
mkdir -p "$LOGS"

check() {  # TOOL FILE EXPRESSION
    local tool=$1 file=$2 part=$3 begun=$SECONDS code summary tests options=(--error-exitcode 9 --print-limit 20)
    local log="$LOGS/$tool-$file-${part//[^a-z0-9]/_}.txt"
    case $tool in
    memcheck) options+=(--padding 256) ;;
    initcheck) export NINFER_TEST_ALLOCATE=raw ;;
    racecheck) export NINFER_TEST_SMALL=1 NINFER_TEST_WATCHED=1 ;;
    esac
    timeout "$LIMIT" compute-sanitizer --tool "$tool" "${options[@]}" python3 -m pytest -x --timeout=600 \
        "tests/device/test_$file.py" -m cuda -o addopts= -p no:benchmark -p no:cacheprovider \
        -o faulthandler_timeout=$((LIMIT - 5)) -k "$part" >"$log" 2>&1
    code=$?
    summary=$(grep -E '(ERROR|RACECHECK) SUMMARY' "$log" | tail -1 | sed 's/^=* *//')
    tests=$(grep -E ' in [0-9.]+s' "$log" | grep -oE '[0-9]+ (passed|failed|errors?)' | tail -1)
    [[ $code == 124 ]] && summary="not done after $LIMIT s"
    local line="$tool, $part: ${summary:-exit code $code} | ${tests:-no test ended} | $((SECONDS - begun)) s"
    if [[ $code == 0 && $tests == *passed && $summary == *"SUMMARY: 0 "* ]]; then
        echo "$line"
        return
    fi
    echo "$line
$(grep -E '^========= +[A-Za-z]|^E  |^  File .*(ninfer|tests)/' "$log" |
        grep -vE 'Host Frame|COMPUTE-SANITIZER' | uniq | head -14 | cut -c1-200 | sed 's/^/    /')"
    return 1
}
export -f check

parts() {  # TOOL -> lines of FILE and EXPRESSION
    echo "short_life weight_format"
    printf 'short_life rings and %s\n' fp16 "not fp16"
    echo "suites test_states_that_are_behind"
    echo "suites test_swiglu_in_the_ending and (300-104-384-0 or 3400-200-576)"
    if [[ $1 != racecheck ]]; then
        printf 'short_life test_life and %s\n' moe "not moe"
        return
    fi
    for way in attend_prefill.cu-4-2 attend_hopper.cu-4-2; do
        printf "suites test_prompts_rows_and_drafts and $way and %s\n" "(bf16 or int8)" "(fp8 or nvfp4)" k8v4
    done
    for forms in "(forms0 or forms1)" "(forms2 or forms3)" "(forms4 or forms5)"; do
        printf "suites (test_rows_add_up or (test_prompts_group_rows and experts_wide.cu-70)) and %s\n" "$forms"
        printf "suites test_prompts_group_rows and experts_hopper.cu-70 and %s\n" "$forms"
    done
    cat <<'END'
suites test_long_contexts_split_and_merge and 4096-bf16
suites test_prompts_do_not_depend_on_cuts and 1-2
suites test_verify_then_fold and 1-2
suites test_routing
suites (test_draws_equal or test_verdicts_equal) and 9000
vision test_every_patch_sees or test_the_merger or test_a_patch_gets
END
}

tools=("$@")
[[ $# == 0 ]] && tools=(racecheck memcheck synccheck)
for tool in "${tools[@]}"; do
    parts "$tool" | while read -r file part; do printf '%s\0%s\0%s\0' "$tool" "$file" "$part"; done
done | xargs -0 -n 3 -P "${JOBS:-24}" bash -c 'check "$@"' check
status=$?
echo "reports: $LOGS"
exit $((status != 0))
