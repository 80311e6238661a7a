#!/usr/bin/env bash
# run_ctest.sh PRESET JOBS: the C++ tests of a build tree; the summary when they pass, and all that failed says when not.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1 jobs=$2
tree=build
if [[ $preset != dev ]]; then tree=build-$preset; fi
if ! grep -q 'TORCHVQ_BUILD_TESTS:BOOL=ON' "$tree/CMakeCache.txt"; then
  echo 'left out: GoogleTest is missing (Debian: libgtest-dev)'
  exit 0
fi
if [[ $preset == tsan ]]; then
  # Without it the sanitizer does not know when threads wait for each other, and reports what is none.
  OMP_TOOL_LIBRARIES=$(clang++ -print-resource-dir)/../../libarcher.so
  export OMP_TOOL_LIBRARIES
  if [[ ! -e $OMP_TOOL_LIBRARIES ]]; then
    echo "Stopped: expected LLVM's archer at $OMP_TOOL_LIBRARIES, but found none (Debian: libomp-14-dev)"
    exit 1
  fi
fi
log=$tree/ctest.log
status=0
ctest --preset "$preset" -j "$jobs" >"$log" 2>&1 || status=$?
if ((status)); then grep -v -E '^ *Start +[0-9]|  Passed +[0-9.]+ sec$' "$log"; else tail -n 3 "$log"; fi
exit "$status"
