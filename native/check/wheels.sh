#!/bin/sh
# Tries the files of a release that .ci/release has put into build/dist: which one pip takes for a platform; the one for
# this machine and the one without the library in empty environments, with each of the given versions of torch (the
# newest); this machine's with its library deleted; and, where qemu is, the library for aarch64.
set -eu
cd "$(dirname "$0")/../.."
root=$PWD dist=$PWD/build/dist
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
cd "$room"

taken() {  # a platform, and how the name of its wheel ends
  python3 -m pip download --quiet --no-index --no-deps --find-links "$dist" --only-binary :all: --platform "$1" \
    --dest "$1" gradwire
  ls "$1"/*"$2.whl"
}
taken manylinux_2_17_x86_64 manylinux_2_17_x86_64
taken manylinux_2_17_aarch64 manylinux_2_17_aarch64
taken macosx_14_0_arm64 none-any
taken musllinux_1_2_x86_64 none-any

for torch in ${*:-torch}; do
  for kind in "native manylinux_2_17_$(uname -m)" "reference musllinux_1_2_x86_64"; do
    python3 -m venv --clear environment
    environment/bin/pip install --quiet "$torch" "${kind#* }"/*.whl
    environment/bin/python "$root/native/check/smoke.py" "${kind% *}"
  done
  environment/bin/pip install --quiet --force-reinstall --no-deps "manylinux_2_17_$(uname -m)"/*.whl
  rm environment/lib/python3*/site-packages/gradwire/ops/native/libgradwire.*
  environment/bin/python "$root/native/check/smoke.py" reference
done

if command -v qemu-aarch64; then
  python3 -m zipfile --extract manylinux_2_17_aarch64/*.whl aarch64
  "$root/native/check/other_processor.sh" "$room/aarch64/gradwire/ops/native/libgradwire.so"
fi
