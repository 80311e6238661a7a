#!/usr/bin/env bash
# coverage.sh JOBS: measures which lines the tests run. Expects build-coverage/ to be built (`make coverage`).
#
# The Python tests also run against the instrumented library, so C++ lines that only they reach are counted.
# Prints summaries; the pages are build-coverage/report/index.html and build-coverage/python/index.html.
set -euo pipefail
cd "$(dirname "$0")/.."
jobs=$1
tree=build-coverage
find "$tree" -name '*.gcda' -delete
mkdir -p "$tree/report"

tools/run_ctest.sh coverage "$jobs"
TORCHVQ_LIBRARY=$PWD/$tree/src/libtorchvq.so python3 -m pytest -q -n "$jobs" -m 'not exhaustive' --timeout=1200 \
  --cov=torchvq --cov-report=term --cov-report=html:"$tree/python" tests/python | tail -n 40

# Only library and program, without the tests.
searched=("$tree/src")
if [[ -d $tree/cli ]]; then searched+=("$tree/cli"); fi
gcovr --root . "${searched[@]}" --filter 'src/' --filter 'include/' --filter 'cli/' \
  --exclude-throw-branches --gcov-ignore-parse-errors=negative_hits.warn \
  --html-details "$tree/report/index.html" --print-summary --txt -
