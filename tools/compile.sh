#!/usr/bin/env bash
# compile.sh PRESET JOBS [TARGET...]: builds targets of a configured tree (all if none is named), and shows progress: on
# a terminal in one line that changes, elsewhere in a line every 15 seconds. Output of compilers is shown in full.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/stop.sh
preset=$1 jobs=$2
shift 2
tree=${TORCHVQ_BUILD:-build} what=("$tree")
if [[ $preset != dev ]]; then tree=build-$preset what=(--preset "$preset"); fi
targets=()
if (($#)); then targets=(--target "$@"); fi

say() { # DONE/ALL
  local done=${1%/*} all=${1#*/} line="  the first files, for $SECONDS s"
  if ((done)); then line="  $((100 * done / all)) %: $done of $all steps in $SECONDS s"; fi
  # No estimate in the first eighth: the first steps take longest and would make it too high.
  if ((8 * done > all && done < all)); then line+=", about $((SECONDS * (all - done) / done)) s to go"; fi
  if [[ -t 1 ]]; then printf '\r\033[K%s' "$line"; else echo "$line"; fi
}

# Reads ninja's output: counts its status lines and passes on all others.
report() {
  local part= line state=0/0 spoke=0 every=15 status
  if [[ -t 1 ]]; then every=1; fi
  while true; do
    status=0
    IFS= read -r -t 1 line || status=$?
    line=$part$line part=
    if ((status == 0)); then
      if [[ $line =~ ^\[([0-9]+/[0-9]+)\]\  ]]; then state=${BASH_REMATCH[1]}; elif [[ $line != ninja:\ no\ work* ]]; then echo "$line"; fi
    elif ((status > 128)); then
      part=$line # a line that is not complete yet
    else
      break
    fi
    if ((SECONDS - spoke >= every)); then
      spoke=$SECONDS
      say "$state"
    fi
  done
  if ((spoke)); then say "$state"; fi
  if [[ -t 1 ]] && ((spoke)); then echo; fi
}

SECONDS=0
log=$tree/compile.log
if NINJA_STATUS='[%f/%t] ' cmake --build "${what[@]}" -j "$jobs" "${targets[@]}" 2>&1 | tee "$log" | report; then exit 0; fi
if grep -q 'No space left on device' "$log"; then
  stop "the disk is full; make room for $PWD/$tree and for ${TMPDIR:-/tmp}, and repeat"
elif grep -q 'Killed signal\|out of memory\|std::bad_alloc' "$log"; then
  stop "the compiler ran out of memory; repeat with fewer at a time, as JOBS=1"
fi
stop "the compilation failed as shown above; all of it is in $log"
