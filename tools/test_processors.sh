#!/usr/bin/env bash
# test_processors.sh PYTHON JOBS: the Python tests that compute in this process, as on other processors: torch's
# kernels, MKL and oneDNN limited to the instructions of older ones, and then every sum and exponential of torch rounded
# as on no processor (tests/python/other_rounding.py). A test that fails only here compares bits that are not ours.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1 jobs=$2
settings=(
  'TORCHVQ_OTHER_ROUNDING=1'
  'ATEN_CPU_CAPABILITY=default MKL_ENABLE_INSTRUCTIONS=SSE4_2 ONEDNN_MAX_CPU_ISA=SSE41'
  'ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 ONEDNN_MAX_CPU_ISA=AVX2'
  'ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX512 ONEDNN_MAX_CPU_ISA=AVX512_CORE'
)
# Left out: tests of programs, which compare output; with the other rounding also C++ programs and spawned processes,
# which it does not reach.
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
