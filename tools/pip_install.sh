#!/usr/bin/env bash
# pip_install.sh PYTHON ARGUMENT...: `pip install ARGUMENT...`, silent on success. On failure it prints one sentence
# with the remedy, and keeps pip's output in a file.
set -euo pipefail
source "$(dirname "$0")/stop.sh"
python=$1
shift
log=$(mktemp --suffix=-pip.log)
# Python compiles a module when it is first imported; most of torch's never are, and compiling them all takes two thirds of
# the installation. With this variable Python keeps nothing that it compiles, and each import of torch would take 3 s more.
compile=--no-compile
if [[ -n ${PYTHONDONTWRITEBYTECODE:-} ]]; then compile=--compile; fi
# With -q, because otherwise the log of a build would contain the whole output of ninja.
if "$python" -m pip -q install "$compile" "$@" >"$log" 2>&1; then
  rm "$log"
  exit 0
fi
said() { grep -qiE "$1" "$log"; }
kept="what pip said is in $log"
what=()
for argument; do [[ $argument == -* || $argument == *constraints.txt ]] || what+=("$argument"); done
if said 'No space left on device|Errno 28'; then
  stop "the disk is full; make room for $("$python" -c 'import sys; print(sys.prefix)') and for ${TMPDIR:-/tmp}, and repeat"
elif said 'Read-only file system|Permission denied'; then
  stop "pip cannot write to $("$python" -c 'import sys; print(sys.prefix)'); make it writable, or name another place with VENV=... ($kept)"
elif said 'NewConnectionError|ConnectTimeout|ConnectionError|ProxyError|SSLError|name resolution|Network is unreachable'; then
  stop "pip reaches no package index for ${what[*]}; connect to the network, or set PIP_INDEX_URL or HTTPS_PROXY ($kept)"
elif said 'torchvq: expected'; then
  stop "$(our_sentence "$log") ($kept)"
elif said 'No matching distribution'; then
  stop "pip finds no $(grep -oP -m1 'No matching distribution found for \K\S+' "$log") for Python $("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])'); name another Python with PYTHON=..., after \`make distclean\` ($kept)"
fi
stop "pip could not install ${what[*]}: $(grep -m1 '^ *\(ERROR\|error\): ' "$log" | sed 's/^ *//' || echo 'it gave no reason') ($kept)"
