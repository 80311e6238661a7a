#!/usr/bin/env bash
# gpu.sh: one command on a machine with a CUDA card, ten minutes at most. It builds the library, runs the checks of
# tests/python/cuda_checks.py and compute-sanitizer, measures, and writes everything to $OUT (default build/gpu-report),
# gpu.json first.
#
#   PYTHON=python3          the Python that has torch
#   OUT=FOLDER              where results go
#   JOBS=N                  cores to compile on (default: all)
#   TORCHVQ_LIBRARY=FILE    a library built before: nothing is compiled
#   TORCHVQ_RUN=FILE        torchvq_run of the same build, for the checks of C++ modules
#   TORCHVQ_COMMIT=NAME     what the page says was measured, for sources without their history
#   TORCHVQ_WHEELS=FOLDER   wheels of packages the machine lacks (the reference): installed into a folder of their own
#
# Parts for which the machine lacks a package or program are named and left out. Without a card everything runs tiny, on
# the CPU. `python benchmarks/python/gpu.py docs --output $OUT` makes docs/gpu.md from the results.
set -uo pipefail
cd "$(dirname "$0")/.."
source tools/stop.sh

python=${PYTHON:-python3}
export OUT=${OUT:-$PWD/build/gpu-report}
jobs=${JOBS:-$(getconf _NPROCESSORS_ONLN)}
tree=build-gpu
began=$SECONDS
mkdir -p "$OUT"
rm -f "$OUT"/*.json "$OUT/commands.txt"

"$python" -c 'import torch' 2>/dev/null || stop "$python finds no torch; PYTHON=... names one that does"

# run NAME SECONDS COMMAND...: writes the output to $OUT/NAME.log; a failure is recorded and does not stop the others.
run() {
  local name=$1 limit=$2 status=0
  shift 2
  echo "==> $name"
  timeout "$limit" "$@" >"$OUT/$name.log" 2>&1 || status=$?
  echo "$name $status" >>"$OUT/commands.txt"
  if ((status)); then
    tail -n 15 "$OUT/$name.log"
    echo "  failed with $status; all of it is in $OUT/$name.log"
  fi
  return $status
}

card() { "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; }
section() { run "$1" "$2" "$python" benchmarks/python/gpu.py "$1" --output "$OUT"; }

if [[ -n ${TORCHVQ_WHEELS:-} ]]; then
  site=$(mktemp -d)
  "$python" -m pip install -q --no-index --no-deps --no-compile --upgrade --target "$site" "$TORCHVQ_WHEELS"/*.whl ||
    stop "the wheels in $TORCHVQ_WHEELS could not be installed"
  export PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH}
fi

build() {
  local generator=() tests=OFF targets=(torchvq)
  if command -v ninja >/dev/null; then generator=(-G Ninja); fi
  if [[ -d /usr/include/gtest && -d /usr/include/gloo ]]; then tests=ON targets+=(torchvq_run); fi
  cmake -S . -B "$tree" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DTORCHVQ_CUDA=AUTO -DTORCHVQ_BUILD_CLI=OFF \
    "-DTORCHVQ_BUILD_TESTS=$tests" "-DPython3_EXECUTABLE=$(command -v "$python")" &&
    cmake --build "$tree" -j "$jobs" --target "${targets[@]}"
}

if [[ -z ${TORCHVQ_LIBRARY:-} ]]; then
  export -f build
  export python tree jobs
  run build 300 bash -c build || stop "the library could not be built"
  export TORCHVQ_LIBRARY=$PWD/$tree/src/libtorchvq.so
  if [[ -x $tree/tests/cpp/torchvq_run ]]; then export TORCHVQ_RUN=$PWD/$tree/tests/cpp/torchvq_run; fi
fi
export PYTHONPATH=$PWD/python${PYTHONPATH:+:$PYTHONPATH}
"$python" benchmarks/python/gpu.py requirements

# Kernels under a sanitizer leave most of the card idle, so the checks run beside them; measurements wait for both.
if card && command -v compute-sanitizer >/dev/null; then
  for tool in memcheck racecheck; do
    run "$tool" 150 compute-sanitizer --tool "$tool" --error-exitcode 9 --kernel-name-exclude kernel_substring=at:: \
      "$python" benchmarks/python/gpu.py small --output "$OUT" &
  done
  section checks 240
  wait
else
  section small 60
  section checks 240
fi
section search 90
section steps 90
section profile 60
section host 30
section ranks 130
"$python" benchmarks/python/gpu.py report --output "$OUT" | tee "$OUT/summary.txt"
echo "all of it is in $OUT, after $((SECONDS - began)) s"
