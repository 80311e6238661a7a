#!/usr/bin/env bash
# compile.sh PRESET JOBS [TARGET...]: builds targets of a configured tree (all of it when none is named), and says how
# far it is: on a terminal in one line that changes, elsewhere in a line every 15 seconds. What compilers have to say is
# shown in full.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/stop.sh
preset=$1 jobs=$2
shift 2
tree=build
if [[ $preset != dev ]]; then tree=build-$preset; fi
targets=()
if (($#)); then targets=(--target "$@"); fi

say() { # DONE/ALL
  local done=${1%/*} all=${1#*/} rest=
  if ((done)); then rest=", about $((SECONDS * (all - done) / done)) s to go"; fi
  local line="  compiled $done of $all: $((100 * done / all)) % in $SECONDS s$rest"
  if [[ -t 1 ]]; then printf '\r\033[K%s' "$line"; else echo "$line"; fi
}

# Reads what ninja prints. Its status lines are counted, all others are passed on.
report() {
  local line state= spoke=0 every=15
  if [[ -t 1 ]]; then every=1; fi
  while true; do
    if IFS= read -r -t 1 line; then
      if [[ $line =~ ^\[([0-9]+/[0-9]+)\]\  ]]; then state=${BASH_REMATCH[1]}; elif [[ $line != ninja:\ no\ work* ]]; then echo "$line"; fi
    elif (($? <= 128)); then
      break
    fi
    if [[ $state ]] && ((SECONDS - spoke >= every)); then
      spoke=$SECONDS
      say "$state"
    fi
  done
  if ((spoke)); then say "$state"; fi
  if [[ -t 1 ]] && ((spoke)); then echo; fi
}

SECONDS=0
log=$tree/compile.log
if NINJA_STATUS='[%f/%t] ' cmake --build --preset "$preset" -j "$jobs" "${targets[@]}" 2>&1 | tee "$log" | report; then exit 0; fi
if grep -q 'No space left on device' "$log"; then
  stop "the disk is full; make room for $PWD/$tree and for ${TMPDIR:-/tmp}, and repeat"
elif grep -q 'Killed signal\|out of memory\|std::bad_alloc' "$log"; then
  stop "the compiler ran out of memory; repeat with fewer at a time, as JOBS=1"
fi
stop "the compilation failed as shown above; all of it is in $log"
