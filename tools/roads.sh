#!/usr/bin/env bash
# roads.sh [ROAD...]: follows each way to install and use torchvq that README.md shows (all of them by default), like
# somebody who has just cloned it. The commands are extracted from README.md, so that the page cannot promise what does
# not work.
#
# Each road has its own environment, which is removed afterwards: a clone of HEAD in an empty folder, no virtual
# environment, no variables but PATH, HOME and PIP_COMPILE=0 (pip leaves it to the first import to compile a module, which
# takes two thirds less time). A road has only what it installs itself.
#
# Roads share the packages of the system and two caches. pip's cache holds downloaded files; each road still has to
# request all that it needs. ccache holds objects keyed by all their inputs (compiler, flags, the text of every header):
# a road with another flag or header compiles again, and one without a header fails in spite of cached objects. So the
# library is compiled once, by the first road (cmake/ccache.cmake).
set -euo pipefail
cd "$(dirname "$0")/.."
source=$PWD
roads=("$@")
if ((${#roads[@]} == 0)); then roads=(demo pip cli wheel prefix subdirectory); fi
work=${TMPDIR:-/tmp}/torchvq-roads-$UID
log=$work.log
exec {lock}>"$work.lock"
flock -n "$lock" || { echo "Stopped: the roads are already being gone in $work" >&2 && exit 1; }
trap 'rm -rf "$work"' EXIT
app=$work/app
clone=$app/torchvq

# PATH without the folders of virtual environments, and the variables of an otherwise empty shell.
path=$(tr : '\n' <<<"$PATH" | while read -r folder; do [[ -e $folder/../pyvenv.cfg ]] || echo "$folder"; done | paste -sd:)
variables=("HOME=$HOME" PIP_COMPILE=0)

# block HEADING LANGUAGE: a block of the cloned README.md. typed: the commands of a block that also shows their output.
block() { python3 "$source/tools/code_blocks.py" "$clone/README.md" "$1" "$2"; }
typed() { sed -n 's/^\$ //p'; }

# in_shell FOLDER: runs the commands on standard input, as if typed one after the other, in the active environment if
# any. Its sudo answers apt-get's question with yes, and updates the package lists if needed.
active=
in_shell() {
  local commands
  commands=$(declare -f sudo && cat)
  (cd "$1" && env -i "${variables[@]}" "PATH=${active:+$active/bin:}$path" bash -euo pipefail -c "$commands" </dev/null)
}
sudo() {
  local root=()
  if ((EUID != 0)); then root=(command sudo -n); fi
  "${root[@]}" "$@" -y -qq || { "${root[@]}" apt-get update -qq && "${root[@]}" "$@" -y -qq; }
}

fresh_environment() {
  echo 'python3 -m venv .venv' | in_shell "$clone"
  active=$clone/.venv
}

# install_as_told [PATTERN]: README's section Install, without lines that match the pattern.
install_as_told() {
  fresh_environment
  block Install console | typed | in_shell "$clone"
  block Install sh | grep -v -- "${1:-^$}" | in_shell "$clone"
}

# The torch of the environment has the same folders as an unpacked LibTorch.
name_libtorch() {
  variables+=("LIBTORCH=$(echo 'python -c "import torch; print(torch.__path__[0])"' | in_shell /)" "PREFIX=$work/prefix")
}

# cpp_program HEADING: the program of README's section C++, with the CMakeLists.txt of section HEADING, built by the
# commands on standard input.
cpp_program() {
  block "$1" cmake >"$app/CMakeLists.txt"
  block C++ cpp >"$app/main.cpp"
  in_shell "$app"
  "$app/build/my_program" | grep -xF '[8, 1024]'
}

same() { # SHOWN ON THE PAGE, ACTUAL
  diff --label README.md "$1" --label 'what came' "$2"
}

road_demo() {
  echo 'make demo DEMO_ARGS=--smoke' | in_shell "$clone"
  grep -qF 'decoded 24 pictures' "$clone/demo-output/index.html"
  grep -qF '<td>pixels that differ in the files</td><td>0</td>' "$clone/demo-output/index.html"
}

road_pip() {
  fresh_environment
  block 'Ten lines' sh | in_shell "$clone"
  block 'Ten lines' python >"$work/ten_lines.py"
  echo "python $work/ten_lines.py" | in_shell "$work" >"$work/said"
  same <(block 'Ten lines' text) "$work/said"
  block Python python >"$work/example.py"
  echo "python $work/example.py" | in_shell "$work"
  echo 'pip uninstall -y -q torchvq; ! python -c "import torchvq" 2>/dev/null' | in_shell "$work"
}

road_cli() {
  install_as_told
  mkdir "$work/cli"
  block 'Command line' console | typed | in_shell "$work/cli" >"$work/said"
  same <(block 'Command line' console | grep -v '^\$ ') "$work/said"
  echo 'torchvq --version; torchvq --help; torchvq fit --help' | in_shell "$work/cli"
  echo 'pip uninstall -y -q torchvq; ! command -v torchvq' | in_shell "$work/cli"
}

road_wheel() {
  install_as_told
  block C++ sh | cpp_program C++
  # examples/README.md: the folder of programs as a separate project; only one of them, because each takes torch's
  # headers.
  cp -r "$clone/examples/cpp" "$work/cpp"
  in_shell "$work" <<<'cmake -S cpp -B build -DCMAKE_PREFIX_PATH="$(python -c "import torchvq; print(torchvq.cmake_prefix_path)")"
    cmake --build build --target residual_vq
    build/residual_vq residual_vq.safetensors | grep "bit for bit"'
}

road_prefix() {
  install_as_told no-build-isolation
  name_libtorch
  active=
  block 'A prefix' console | typed | in_shell "$clone"
  block 'A prefix' sh | in_shell "$clone"
  echo 'cmake -B build -DCMAKE_PREFIX_PATH="$PREFIX;$LIBTORCH"; cmake --build build' | cpp_program C++
}

# The project compiles the library in a separate folder, in which no cached object fits. Objects of equal commands are
# reused, and any other command is an error (tests/consumer/reuse_objects.py).
road_subdirectory() {
  install_as_told no-build-isolation
  name_libtorch
  local build="'$clone/build'"
  echo "cmake -G Ninja -S '$clone' -B $build -DCMAKE_BUILD_TYPE=Release; cmake --build $build --target torchvq" | in_shell /
  local reuse="$active/bin/python;$clone/tests/consumer/reuse_objects.py;$clone/build;$app/build/torchvq"
  variables+=("CMAKE_CXX_COMPILER_LAUNCHER=$reuse")
  block 'A subdirectory' sh | cpp_program 'A subdirectory'
}

for road in "${roads[@]}"; do
  printf '\033[1m==>\033[0m A way in: %s\n' "$road"
  SECONDS=0
  rm -rf "$work"
  mkdir -p "$app"
  git clone -q "$source" "$clone"
  # Not as an `if` condition, which would disable errexit inside.
  set +e
  (set -e && "road_$road") >"$log" 2>&1
  status=$?
  set -e
  if ((status)); then
    cat "$log"
    echo "  $road: FAILED (log: $log)"
    exit 1
  fi
  echo "  $road: passed in $SECONDS s"
done
rm -f "$log"
