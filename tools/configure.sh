#!/usr/bin/env bash
# configure.sh PRESET PYTHON: configures a build tree without the parts for which this machine lacks packages. With
# UNITY=0 in the environment, sources compile one by one.
# configure.sh --options: prints the resulting options, so that `make` notices when they change.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/stop.sh

header() { [[ -e /usr/include/$1 || -e /usr/local/include/$1 ]]; }

options=()
if [[ ${UNITY:-1} == 0 ]]; then options+=(-DTORCHVQ_UNITY=OFF); else options+=(-DTORCHVQ_UNITY=ON); fi
if ! header gtest/gtest.h; then options+=(-DTORCHVQ_BUILD_TESTS=OFF); fi
if ! header benchmark/benchmark.h; then options+=(-DTORCHVQ_BUILD_BENCHMARKS=OFF); fi
if header CLI/CLI.hpp; then
  options+=(-DTORCHVQ_BUILD_CLI=ON)
else
  options+=(-DTORCHVQ_BUILD_CLI=OFF)
fi
if [[ $1 == --options ]]; then
  echo "${options[@]}"
  exit 0
fi
preset=$1 python=$2
tree=()
if [[ $preset == dev ]]; then tree=(-B "${TORCHVQ_BUILD:-build}"); fi
if [[ $preset == files ]]; then options+=(-DTORCHVQ_UNITY=OFF); fi

case $preset in
  tsan | fuzz)
    if ! command -v clang++ >/dev/null; then
      echo "Stopped: the preset $preset needs Clang (Debian: clang libclang-rt-14-dev libomp-14-dev)"
      exit 1
    fi
    ;;
esac

# CMake's output is shown only if it fails, except its summary line. Our own errors are single sentences.
log=$(mktemp --suffix=-cmake.log)
if ! cmake --preset "$preset" "${tree[@]}" "-DPython3_EXECUTABLE=$python" "${options[@]}" >"$log" 2>&1; then
  if grep -q 'torchvq: expected' "$log"; then
    stop "$(our_sentence "$log") (all that CMake said is in $log)"
  elif grep -q 'No space left on device' "$log"; then
    stop "the disk is full; make room for $PWD, and repeat"
  fi
  cat "$log" >&2
  stop "CMake could not configure the build, as shown above"
fi
grep -- '-- torchvq' "$log"
rm "$log"
