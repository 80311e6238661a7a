#!/usr/bin/env bash
# check_compiler.sh: checks that the compiler supports C++20, before anything large is installed.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/stop.sh
compiler=${CXX:-c++}
log=$(mktemp --suffix=-compiler.log)
if ! $compiler -std=c++20 -fsyntax-only cmake/cxx20_probe.cpp >"$log" 2>&1; then
  stop "$compiler ($($compiler -dumpfullversion 2>/dev/null || echo 'of unknown version')) does not compile C++20;" \
    "install GCC 11 or newer and name it with CXX=... (what it said is in $log)"
fi
rm "$log"
