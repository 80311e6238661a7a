#!/usr/bin/env bash
# configure.sh PRESET PYTHON: configures a build tree, and leaves out what this machine has no packages for.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1 python=$2

header() { [[ -e /usr/include/$1 || -e /usr/local/include/$1 ]]; }

case $preset in
  tsan | fuzz)
    if ! command -v clang++ >/dev/null; then
      echo "Stopped: the preset $preset needs Clang (Debian: clang libclang-rt-14-dev, for tsan also libomp-14-dev)"
      exit 1
    fi
    ;;
esac

options=("-DPython3_EXECUTABLE=$python")
if ! header gtest/gtest.h; then options+=(-DTORCHVQ_BUILD_TESTS=OFF); fi
if ! header benchmark/benchmark.h; then options+=(-DTORCHVQ_BUILD_BENCHMARKS=OFF); fi
if header CLI/CLI.hpp; then
  options+=(-DTORCHVQ_BUILD_CLI=ON)
else
  options+=(-DTORCHVQ_BUILD_CLI=OFF)
fi

# What CMake has to say is of interest when it fails; its summary line always is.
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! cmake --preset "$preset" "${options[@]}" >"$log" 2>&1; then
  cat "$log" >&2
  exit 1
fi
grep -- '-- torchvq' "$log"
