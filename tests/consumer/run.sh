#!/usr/bin/env bash
# run.sh PYTHON JOBS [--compile]: builds the consumer project against the wheel installed for PYTHON, against an
# installed prefix, and with the checkout as a subdirectory, and runs its programs. Expects the tree in build/ to be
# built.
#
# As a subdirectory, the project configures, links and uses the library, but takes its objects from build/, after a
# check that it would compile them by the same commands (reuse_objects.py). With --compile it compiles them.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
python=$1 jobs=$2 compile=${3-}
build=$root/${TORCHVQ_BUILD:-build}
work=$build/consumer
mkdir -p "$work"

# Called from another folder, so that Python does not import the checkout.
ask() { (cd / && "$python" -c "$1"); }
wheel=$(ask 'import torchvq; print(torchvq.cmake_prefix_path)')
torch=$(ask 'import torch; print(torch.utils.cmake_prefix_path)')

# consume NAME OPTION...: prints one line, or the whole log if something fails.
consume() {
  local name=$1 log=$work/$1.log
  shift
  if {
    cmake -G Ninja -S "$here" -B "$work/$name" -DCMAKE_BUILD_TYPE=Release "$@" &&
      cmake --build "$work/$name" -j "$jobs" &&
      ctest --test-dir "$work/$name" --output-on-failure
  } >"$log" 2>&1; then
    echo "  $name: $(grep 'tests passed' "$log")"
  else
    cat "$log"
    echo "  $name: FAILED (log: $log)"
    exit 1
  fi
}

# The prefix is moved after installation, because it must not contain paths of this machine.
rm -rf "$work/prefix" "$work/moved"
cmake --install "$build" --prefix "$work/prefix" --component development >"$work/install.log"
mv "$work/prefix" "$work/moved"

# With a CUDA build of torch, find_package(Torch) needs the whole CUDA toolkit; find_package(torchvq) does not.
finds_torch() {
  mkdir -p "$work/finds_torch"
  printf '%s\n' 'cmake_minimum_required(VERSION 3.24)' 'project(finds_torch LANGUAGES CXX)' 'find_package(Torch REQUIRED)' \
    >"$work/finds_torch/CMakeLists.txt"
  cmake -G Ninja -S "$work/finds_torch" -B "$work/finds_torch/build" -DCMAKE_PREFIX_PATH="$torch" >"$work/finds_torch.log" 2>&1
}
before=() after=()
if [[ $(ask 'import torch; print(torch.version.cuda)') == None ]] || finds_torch; then
  before=(-DFIND_TORCH=before) after=(-DFIND_TORCH=after)
fi

consume from_wheel -DCMAKE_PREFIX_PATH="$wheel;$torch" "${before[@]}"
consume from_prefix -DCMAKE_PREFIX_PATH="$work/moved;$torch"
launcher="$python;$here/reuse_objects.py;$build;$work/as_subdirectory/torchvq"
if [[ $compile == --compile ]]; then launcher=; fi
# The setting of build/, whatever the default.
unity=$(sed -n 's/^\(TORCHVQ_UNITY:BOOL=.*\)/-D\1/p' "$build/CMakeCache.txt")
consume as_subdirectory -DTORCHVQ_SOURCE_DIR="$root" -DCMAKE_PREFIX_PATH="$torch" \
  "${after[@]}" -DCMAKE_CXX_COMPILER_LAUNCHER="$launcher" ${unity:+"$unity"}
