#!/usr/bin/env bash
# test_processors.sh PYTHON JOBS: the Python tests that compute in this process, as other processors would compute them:
# torch's kernels, MKL and oneDNN bounded to the instructions of older ones, and every sum and exponential of torch
# rounded as on none (tests/python/other_rounding.py). A test that fails here alone compares bits that are not ours.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1 jobs=$2
settings=(
  'TORCHVQ_OTHER_ROUNDING=1'
  'ATEN_CPU_CAPABILITY=default MKL_ENABLE_INSTRUCTIONS=SSE4_2 ONEDNN_MAX_CPU_ISA=SSE41'
  'ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 ONEDNN_MAX_CPU_ISA=AVX2'
  'ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX512 ONEDNN_MAX_CPU_ISA=AVX512_CORE'
)
# Programs are tested by what they print; those in C++, and processes that are spawned, are not rounded otherwise.
apart=(--ignore-glob='tests/python/test_cli*')
for name in benchmarks examples examples_trained serving; do apart+=("--ignore=tests/python/test_$name.py"); done
status=0
for number in "${!settings[@]}"; do
  echo "  ${settings[number]}"
  read -ra setting <<<"${settings[number]}"
  more=()
  if [[ ${settings[number]} == *OTHER_ROUNDING* ]]; then
    more=(--ignore-glob='tests/python/test_*_cpp.py' -k 'not spawn')
  fi
  env "${setting[@]}" "$python" -m pytest -q -n "$jobs" --dist worksteal -m 'not exhaustive' "${apart[@]}" "${more[@]}" \
    --junitxml "${TORCHVQ_BUILD:-build}/reports/processor_$number.xml" tests/python tests/matrix tests/parity || status=$?
done
exit "$status"
