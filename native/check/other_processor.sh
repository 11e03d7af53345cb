#!/bin/sh
# Builds the kernels for aarch64 (NEON) and runs them, or a library of a wheel for aarch64, under qemu: their digest must
# be that of this machine. Needs Debian's g++-aarch64-linux-gnu and qemu-user.
set -eu
library=${1:-}
cd "$(dirname "$0")/../.."
here=build/digest there=build/digest-aarch64
cmake -S native -B $here -DGRADWIRE_DIGEST=ON > /dev/null
cmake --build $here --target digest > /dev/null
cmake -S native -B $there -DGRADWIRE_DIGEST=ON -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
  -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ > /dev/null
cmake --build $there --target digest > /dev/null
$here/digest > $here/said
qemu-aarch64 -L /usr/aarch64-linux-gnu ${library:+-E LD_PRELOAD="$library"} $there/digest > $there/said
cat $here/said $there/said
test "$(cat $here/said $there/said | cut -d' ' -f3 | sort -u | wc -l)" = 1
