#!/usr/bin/env bash
# check_standalone.sh JOBS [--changed] FOLDER...: compiles each source of these folders separately, without writing
# objects. The build compiles many at a time (src/unity.cmake), so a source may depend on includes of its neighbours;
# this detects it. With --changed, only those that a change reaches (tools/changed_sources.py). Expects build-files/ to
# be configured.
#
# Sources that have passed are compiled again only when they, or any header, change.
set -euo pipefail
cd "$(dirname "$0")/.."
jobs=$1
shift
only=
if [[ $1 == --changed ]]; then
  shift
  only=$(python3 tools/changed_sources.py --reached "$@")
  if [[ -z $only ]]; then
    echo '  nothing to check'
    exit 0
  fi
fi
tree=build-files
passed=$tree/standalone
mkdir -p "$passed"

# One line per source: its name, a tab, and the command that compiles it without writing anything.
commands=$(python3 - "$tree" "$only" "$@" <<'PYTHON'
import json, os, re, sys

tree, only, *folders = sys.argv[1:]
wanted = set(only.splitlines())
for entry in json.load(open(f"{tree}/compile_commands.json")):
    name = os.path.relpath(entry["file"])
    if name.startswith(tuple(f"{folder}/" for folder in folders)) and (not wanted or name in wanted):
        print(name, re.sub(r" -o \S+ -c ", " -fsyntax-only ", entry["command"]), sep="\t")
PYTHON
)

precompiled=$(sed -n "s|.* -include $PWD/$tree/\([^ ]*\) .*|\1.gch|p" <<<"$commands" | sort -u)
if [[ $precompiled ]]; then
  ninja -C "$tree" $precompiled >"$tree/pch.log" || { cat "$tree/pch.log"; exit 1; }
fi

newest_header=$(find "$@" src include "$tree/include" -name '*.h' -printf '%T@ %p\n' | sort -rn | sed -n '1s/^[^ ]* //p')

# check NAME<tab>COMMAND
check() {
  local name=${1%%$'\t'*} command=${1#*$'\t'}
  local record=$passed/${name//\//_}
  if [[ $record -nt $name && $record -nt $newest_header ]]; then return; fi
  (cd "$tree" && eval "$command") && touch "$record"
}
export -f check
export passed tree newest_header

xargs -d '\n' -P "$jobs" -I{} bash -c 'check "$1"' _ {} <<<"$commands" ||
  { echo 'A source does not compile by itself; `make UNITY=0` builds file by file'; exit 1; }
echo "  $(wc -l <<<"$commands") sources compile by themselves"
