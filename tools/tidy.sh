#!/usr/bin/env bash
# tidy.sh JOBS [--all]: clang-tidy on the C++ files that differ from the main branch, or on all of them.
#
# Expects build-files/ to be configured. tools/changed_sources.py lists the changes. A changed header stands for the
# sources of the same name: src/ops/foo.h for every foo.cpp. Headers are checked through the sources that include them.
set -euo pipefail
cd "$(dirname "$0")/.."
jobs=$1

changed() { python3 tools/changed_sources.py; }

compiled=$(python3 -c '
import json, os
print("\n".join(os.path.relpath(entry["file"]) for entry in json.load(open("build-files/compile_commands.json"))))' |
  grep -v -e '^tests/cuda_shim/' -e '\.cu$' | sort -u)  # whose names are CUDA's

if [[ ${2:-} == --all ]]; then
  wanted=$compiled
else
  names=$(changed | sed 's/\.h$/.cpp/' | sort -u)
  stems=$(changed | { grep '\.h$' || true; } | xargs -r -n1 basename -s .h)
  wanted=$(
    {
      comm -12 <(echo "$compiled") <(echo "$names")
      for stem in $stems; do grep -E "(^|/)$stem(_test)?\.cpp$" <<<"$compiled" || true; done
    } | sort -u
  )
fi
if [[ -z $wanted ]]; then
  echo '  nothing to check'
  exit 0
fi

echo "  $(wc -l <<<"$wanted") files"
# Without OpenMP and precompiled headers, which are GCC's; clang reads the headers' text instead. The filter drops
# clang-tidy's counts of suppressed warnings.
xargs -P "$jobs" -n 1 clang-tidy --quiet -p build-files --extra-arg=-fno-openmp --extra-arg=-Wno-ignored-gch <<<"$wanted" 2> >(grep -v -E 'warnings? (generated|treated)|^Suppressed|^Use -(header|system)' >&2)
