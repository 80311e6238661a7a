#!/usr/bin/env bash
# run_benchmarks.sh: runs every C++ benchmark program, one after the other because they measure time; prints tables, and
# writes JSON to benchmarks/results/cpp/.
set -euo pipefail
cd "$(dirname "$0")/.."
results=benchmarks/results/cpp
mkdir -p "$results"
found=0
for program in "${TORCHVQ_BUILD:-build}"/benchmarks/cpp/*_benchmark; do
  if [[ ! -x $program ]]; then continue; fi
  found=1
  name=$(basename "$program")
  "$program" --benchmark_out="$results/$name.json" --benchmark_out_format=json \
    --benchmark_counters_tabular=true ${BENCH_FILTER:+--benchmark_filter="$BENCH_FILTER"}
done
if ((!found)); then echo 'left out: Google Benchmark is missing (Debian: libbenchmark-dev)'; fi
