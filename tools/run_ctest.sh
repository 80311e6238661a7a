#!/usr/bin/env bash
# run_ctest.sh PRESET JOBS: runs the C++ tests of a build tree; prints the summary if they pass, otherwise the output of
# failed tests. Leaves a JUnit report, reports/cpp.xml in the tree.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1 jobs=$2
tree=${TORCHVQ_BUILD:-build} what=(--test-dir "$tree" --output-on-failure)
if [[ $preset != dev ]]; then tree=build-$preset what=(--preset "$preset"); fi
if ! grep -q 'TORCHVQ_BUILD_TESTS:BOOL=ON' "$tree/CMakeCache.txt"; then
  echo 'Stopped: the C++ tests need GoogleTest, and there is none (Debian: apt-get install libgtest-dev, then make again)'
  exit 1
fi
if [[ $preset == tsan ]]; then
  # Without archer, ThreadSanitizer does not see OpenMP's synchronisation and reports false races.
  OMP_TOOL_LIBRARIES=$(clang++ -print-resource-dir)/../../libarcher.so
  export OMP_TOOL_LIBRARIES
  if [[ ! -e $OMP_TOOL_LIBRARIES ]]; then
    echo "Stopped: expected LLVM's archer at $OMP_TOOL_LIBRARIES, but found none (Debian: libomp-14-dev)"
    exit 1
  fi
fi
log=$tree/ctest.log
report=$PWD/$tree/reports/cpp.xml
rm -rf "${report%.xml}"
mkdir -p "${report%/*}"
status=0
ctest "${what[@]}" -j "$jobs" --output-junit "$report" >"$log" 2>&1 || status=$?
# The log of a failed source also contains its passed tests, with a line at the start and end of each; these are
# dropped.
if ((status)); then
  sed -E '/^\[ RUN  /{N;/\n\[ +OK \]/d}' "$log" | grep -v -E '^ *Start +[0-9]|  Passed +[0-9.]+ sec$'
else
  tail -n 3 "$log"
fi
exit "$status"
