#!/usr/bin/env bash
# One command for a GPU machine: every device test, then the benchmarks named as arguments.
#   scripts/device_run.sh                        the tests
#   scripts/device_run.sh "python -m ..."        the tests, then each command
set -uo pipefail
cd "$(dirname "$0")/.."
export PYTHONUNBUFFERED=1 OPENBLAS_NUM_THREADS=4 PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
python3 -m pytest tests/device -m cuda -q --timeout=120 ${PYTEST_ARGS:-}
status=$?
for command in "$@"; do
    bash -c "$command" || status=$?
done
exit $status
