#!/bin/sh
# Builds the wheel with the library and the one for any platform, installs each into an empty environment with each of
# the given versions of torch (the newest), and runs smoke.py there; the first also with the library deleted.
set -eu
cd "$(dirname "$0")/../.."
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
python3 -m pip wheel --quiet --no-deps --wheel-dir "$room/native" .
GRADWIRE_PURE=1 python3 -m pip wheel --quiet --no-deps --wheel-dir "$room/reference" .
cp native/check/smoke.py "$room"
cd "$room"
for torch in ${*:-torch}; do
  for kind in native reference; do
    python3 -m venv --clear environment
    environment/bin/pip install --quiet "$torch" $kind/*.whl
    ls $kind
    environment/bin/python smoke.py $kind
  done
  environment/bin/pip install --quiet --force-reinstall --no-deps native/*.whl
  rm environment/lib/python3*/site-packages/gradwire/ops/native/libgradwire.*
  environment/bin/python smoke.py reference
done
