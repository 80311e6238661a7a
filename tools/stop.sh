# Sourced by the scripts of the way in: what a newcomer has to put right is said in one sentence, with the remedy.

stop() {
  echo "Stopped: $*" >&2
  exit 1
}

# our_sentence FILE: an error of this project's CMake files, which CMake has broken into lines, as one line.
our_sentence() {
  awk '/torchvq: expected/ {on = 1} on && NF == 0 {exit} on' "$1" | xargs -d '\n' echo | tr -s ' ' | sed 's/^ //; s/ $//'
}
