# Sourced by the scripts of the way in: what a newcomer has to put right is said in one sentence, with the remedy.

stop() {
  echo "Stopped: $*" >&2
  exit 1
}
