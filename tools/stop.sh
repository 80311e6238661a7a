# Sourced by the set-up scripts: problems that a newcomer must fix are reported in one sentence, with the remedy.

stop() {
  echo "Stopped: $*" >&2
  exit 1
}

# our_sentence FILE: joins the lines into which CMake has broken an error of this project's CMake files.
our_sentence() {
  awk '/torchvq: expected/ {on = 1} on && NF == 0 {exit} on' "$1" | xargs -d '\n' echo | tr -s ' ' | sed 's/^ //; s/ $//'
}
