#!/usr/bin/env bash
# check_wheel.sh PYTHON TORCH: installs the newest wheel of dist/ into a clean environment beside that version of torch,
# and uses it as README.md shows: the ten lines, the Python example, the command line, and a C++ program.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/stop.sh
root=$PWD python=$1 torch=$2
wheel=$(find dist -name 'torchvq-*.whl' -printf '%T@ %p\n' 2>/dev/null | sort -n | tail -n 1 | cut -d' ' -f2)
[[ $wheel ]] || stop "there is no wheel in dist/; \`make wheel\` builds one"
work=$(mktemp -d --suffix=-wheel)
trap 'rm -rf "$work"' EXIT
unset PYTHONPATH VIRTUAL_ENV

block() { python3 tools/code_blocks.py README.md "$1" "$2"; }
same() { # WHAT WANTED GOT
  diff "$2" "$3" || stop "$1 of README.md printed something else than it shows"
  echo "  $1: as README.md shows"
}

case $wheel in
  *-py3-none-manylinux*) ;;
  *) stop "expected a wheel for any Python on manylinux, but got $wheel" ;;
esac
# Paths of this machine in the wheel would be invalid on others.
mkdir "$work/files"
python3 -m zipfile -e "$wheel" "$work/files"
if grep -rlF "$root/" "$work/files" | grep -v '/RECORD$'; then stop "these files of $wheel name $root"; fi

"$python" -m venv "$work/env"
PATH=$work/env/bin:$PATH
tools/pip_install.sh python "torch==$torch" -c requirements/constraints.txt
tools/pip_install.sh python numpy cmake ninja "$wheel" -c requirements/constraints.txt

# From here on, only README.md of the checkout is used.
cd "$work"
in_root() { (cd "$root" && "$@"); }
in_root block 'Ten lines' python >ten_lines.py
in_root block 'Ten lines' text >wanted
python ten_lines.py >got
same 'the ten lines' wanted got
in_root block Python python >example.py
python example.py
echo '  the Python example: runs'

mkdir cli
in_root block 'Command line' console | grep -v '^\$ ' >wanted
in_root block 'Command line' console | sed -n 's/^\$ //p' | (cd cli && bash -euo pipefail) >got
same 'the command line' wanted got
[[ $(torchvq --version) == *"$(cat "$root/VERSION")"* ]] || stop "torchvq --version says $(torchvq --version)"

mkdir app
in_root block 'C++' cmake >app/CMakeLists.txt
in_root block 'C++' cpp >app/main.cpp
in_root block 'C++' sh | (cd app && CMAKE_GENERATOR=Ninja bash -euo pipefail) >app.log 2>&1 ||
  { cat app.log >&2; stop 'the C++ program of README.md does not build from the wheel'; }
echo '  the C++ program: builds with find_package, runs'

pip -q uninstall -y torchvq
left=$(find env/lib env/bin -path '*torchvq*' -print -quit)
[[ ! $left ]] || stop "pip uninstall leaves $left"
echo "  ${wheel##*/}: works with torch $torch"
