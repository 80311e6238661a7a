#!/usr/bin/env bash
# roads.sh [ROAD...]: goes each way into the project that README.md shows (all of them when none is named), as somebody
# goes who has just cloned it. What is run is cut out of README.md, so that the page cannot promise what does not work.
#
# Each road has an environment of its own, removed afterwards: a clone of HEAD in an empty folder, no virtual environment,
# no variables but PATH and HOME. What a road does not install for itself, it does not have.
#
# Shared are the packages of the system and two caches. pip's holds files as downloaded; each road still has to ask for all
# that it needs. ccache's holds objects by everything that goes into them (compiler, flags, the text of every header): a
# road with another flag or header compiles anew, and one without a header fails, cached objects or not. All clones lie
# at the same path, one after the other, so that the library is compiled once, by the first road.
set -euo pipefail
cd "$(dirname "$0")/.."
source=$PWD
roads=("$@")
if ((${#roads[@]} == 0)); then roads=(demo pip cpp prefix subdirectory); fi
work=$(mktemp -d --suffix=-roads)
trap 'rm -rf "$work"' EXIT
clone=$work/torchvq

# PATH as it is before any virtual environment.
path=$(tr : '\n' <<<"$PATH" | while read -r folder; do if [[ ! -e $folder/../pyvenv.cfg ]]; then echo "$folder"; fi; done | paste -sd:)

# The environment of a newcomer's shell; PATH comes first.
empty=(env -i "HOME=$HOME" "CCACHE_BASEDIR=$clone")

block() { python3 "$source/tools/code_blocks.py" "$clone/README.md" "$1" "$2"; }

# in_shell FOLDER: runs the commands on standard input, as typed one after the other; the environment in $work/env is
# active where there is one.
in_shell() {
  local before=$path
  if [[ -e $work/env ]]; then before=$work/env/bin:$path; fi
  (cd "$1" && "${empty[@]}" PATH="$before" bash -euo pipefail)
}

fresh_environment() {
  "${empty[@]}" PATH="$path" python3 -m venv "$work/env"
}

install_as_told() {
  fresh_environment
  block Install sh | in_shell "$clone"
}

# The project of README's section C++ in $1, built by the commands on standard input.
cpp_project() {
  mkdir -p "$1"
  block 'C++' cpp >"$1/main.cpp"
  in_shell "$1"
  "${empty[@]}" PATH="$path" "$1/build/my_program"
}

expect() { # FILE TEXT
  grep -qF -- "$2" "$1" || { echo "expected '$2' in $1"; cat "$1"; return 1; }
}

road_demo() {
  echo 'make demo DEMO_ARGS=--smoke' | in_shell "$clone"
  expect "$clone/demo-output/index.html" 'The same tokens, decoded in C++'
  expect "$clone/demo-output/index.html" 'decoded 24 pictures'
}

# What is shown and what comes are compared to the letter.
road_pip() {
  install_as_told
  block 'Ten lines' python >"$work/ten_lines.py"
  echo "python $work/ten_lines.py" | in_shell "$work" >"$work/said"
  diff <(block 'Ten lines' text) "$work/said"
  block Python python >"$work/example.py"
  echo "python $work/example.py" | in_shell "$work"
  mkdir "$work/cli"
  block 'Command line' console | sed -n 's/^\$ //p' | in_shell "$work/cli" >"$work/said"
  diff <(block 'Command line' console | grep -v '^\$ ') "$work/said"
  echo 'torchvq --version && torchvq --help >/dev/null && torchvq fit --help >/dev/null' | in_shell "$work"
  echo 'pip uninstall -y -q torchvq && ! python -c "import torchvq" 2>/dev/null && ! command -v torchvq' | in_shell "$work"
}

road_cpp() {
  install_as_told
  mkdir "$work/app"
  block 'C++' cmake >"$work/app/CMakeLists.txt"
  block 'C++' sh | cpp_project "$work/app"
}

road_prefix() {
  fresh_environment
  block Install sh | grep -v -- '--no-build-isolation' | in_shell "$clone"
  block 'Without Python' sh | in_shell "$clone"
  mkdir "$work/app"
  block 'C++' cmake >"$work/app/CMakeLists.txt"
  block 'A prefix' sh | cpp_project "$work/app"
}

road_subdirectory() {
  fresh_environment
  block Install sh | grep -v -- '--no-build-isolation' | in_shell "$clone"
  mkdir "$work/app"
  ln -s "$clone" "$work/app/torchvq"
  block 'A subdirectory' cmake >"$work/app/CMakeLists.txt"
  block 'A subdirectory' sh | cpp_project "$work/app"
}

for road in "${roads[@]}"; do
  printf '\033[1m==>\033[0m A way in: %s\n' "$road"
  SECONDS=0
  rm -rf "${work:?}"/*
  git clone -q "$source" "$clone"
  # Not as a condition, which would switch errexit off inside.
  set +e
  (set -e && "road_$road") >"$work.log" 2>&1
  status=$?
  set -e
  if ((status)); then
    cat "$work.log"
    echo "  $road: FAILED (log: $work.log)"
    exit 1
  fi
  echo "  $road: passed in $SECONDS s"
done
