#!/usr/bin/env bash
# format_cpp.sh [--check]: clang-format on every C++ file that git knows or would add.
set -euo pipefail
cd "$(dirname "$0")/.."
mapfile -t files < <(git ls-files --cached --others --exclude-standard -- '*.cpp' '*.h' '*.cu' | sort -u |
  while read -r file; do if [[ -e $file ]]; then echo "$file"; fi; done)
if [[ ${1:-} != --check ]]; then
  clang-format -i --style=file "${files[@]}"
  exit 0
fi
wrong=()
for file in "${files[@]}"; do
  clang-format --style=file "$file" | cmp -s - "$file" || wrong+=("$file")
done
if ((${#wrong[@]})); then
  printf 'clang-format would change %s\n' "${wrong[@]}"
  echo 'Run `make format`.'
  exit 1
fi
