#!/bin/sh
# Runs the kernels' tests, and those of jobs of several processes, under AddressSanitizer and UndefinedBehaviorSanitizer;
# PYTHON names the interpreter.
set -eu
cd "$(dirname "$0")/../.."
cmake -S native -B build/sanitize -DGRADWIRE_SANITIZE=ON > /dev/null
cmake --build build/sanitize
GRADWIRE_KERNELS=$PWD/build/sanitize/libgradwire.so LD_PRELOAD="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libubsan.so)" \
  ASAN_OPTIONS=detect_leaks=0 OMP_NUM_THREADS=1 "${PYTHON:-python3}" -m pytest -q -m "not long" tests/ops/test_native.py tests/ops/test_native_entries.py \
  tests/ops/test_native_products.py tests/ops/test_native_arguments.py tests/ops/test_rounding.py tests/ops/test_eight_bits.py tests/laws/test_default_dtype.py tests/laws/test_edge_sizes.py \
  tests/processes/test_processes.py tests/processes/test_parameters.py tests/processes/test_shards.py tests/processes/test_local_steps.py
