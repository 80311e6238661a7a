#!/usr/bin/env bash
# make_venv.sh PYTHON VENV: makes a virtual environment, after checking that this machine meets the requirements.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/stop.sh
python=$1 venv=$2
readonly needed=2 # GB: torch for the CPU takes 0.9 of it, a build tree 0.5

[[ $(uname -s) == Linux ]] || stop "expected Linux, but got $(uname -s); torchvq is neither built nor tested elsewhere"
command -v "$python" >/dev/null ||
  stop "no $python found; install Python 3.11 or newer (Debian: apt-get install python3-venv), or name one with PYTHON=..."
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])') ||
  stop "$python does not run; name another Python with PYTHON=..."
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  stop "expected $python to be Python 3.11 or newer, but got $version; name a newer one with PYTHON=..."
"$python" -c 'import ensurepip, venv' 2>/dev/null ||
  stop "$python cannot make virtual environments; install what it needs for that (Debian: apt-get install python3-venv)"

place=$(dirname "$venv")
{ mkdir -p "$place" && touch "$place/.probe.tmp" && rm "$place/.probe.tmp"; } 2>/dev/null ||
  stop "cannot write to $(realpath -m "$place"); clone into a folder of your own, or name another place with VENV=..."
free=$(df -Pk "$place" | awk 'END {print int($4 / 1e6)}')
((free >= needed)) ||
  stop "$(realpath "$place") has $free GB left, and $needed are needed; make room, or clone onto a larger disk"

log=$(mktemp)
if ! "$python" -m venv "$venv" >"$log" 2>&1; then
  rm -rf "$venv"
  stop "$python could not make $venv: $(tail -n 1 "$log"); all that it said is in $log"
fi
rm "$log"
