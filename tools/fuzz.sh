#!/usr/bin/env bash
# fuzz.sh SECONDS: runs each fuzzer of build-fuzz/ that long, starting from the valid files and the corpus of earlier
# runs. Inputs that crash a reader are left in build-fuzz/findings/.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=$1 tree=build-fuzz
seeds=$tree/seeds
mkdir -p "$seeds" "$tree/findings"
# libtorch is not instrumented: its containers would be reported, and so would objects that it never frees.
export ASAN_OPTIONS=detect_container_overflow=0:detect_leaks=0
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
"$tree/tests/fuzz/fuzz_seeds" "$seeds"
for format in npy safetensors codec projected_codec; do
  corpus=$tree/corpus/$format
  log=$tree/$format.log
  mkdir -p "$corpus"
  if ! "$tree/tests/fuzz/${format}_fuzzer" -max_total_time="$seconds" -dict=tests/fuzz/headers.dict -max_len=4096 -rss_limit_mb=4096 \
    -artifact_prefix="$tree/findings/$format-" "$corpus" "$seeds" >"$log" 2>&1; then
    tail -n 60 "$log"
    echo "  $format: FAILED (log: $log)"
    exit 1
  fi
  echo "  $format: $(grep -o 'Done .*' "$log")"
done
