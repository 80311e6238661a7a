#!/usr/bin/env bash
# run_reference_suite.sh CHECKOUT [PYTEST-ARGUMENT...]: runs the tests of a checkout of vector-quantize-pytorch on
# torchvq, with only their imports changed, once with TORCHVQ_COMPAT=1 and once without. The checkout is neither changed
# nor kept. Without the switch indices are int64, so exactly the tests that ask for int32 fail (docs/migrating.md).
set -euo pipefail
if (($# < 1)) || [[ ! -d $1/tests ]]; then
  echo "usage: $0 CHECKOUT [PYTEST-ARGUMENT...], CHECKOUT being a folder with tests/ of vector-quantize-pytorch" >&2
  exit 2
fi
checkout=$1
shift
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp -r "$checkout/tests" "$folder/tests"
find "$folder/tests" -name '*.py' -exec sed -i -E \
  's/^( *)(from|import) vector_quantize_pytorch/\1\2 torchvq/' {} +
cd "$folder"
status=0
for switch in 1 0; do
  echo "== TORCHVQ_COMPAT=$switch"
  TORCHVQ_COMPAT=$switch "${PYTHON:-python}" -m pytest -q -p no:cacheprovider --rootdir "$folder" tests "$@" || status=$?
done
exit "$status"
