#!/bin/sh
# Builds the fuzzers with Clang, AddressSanitizer and UBSan, and runs each for so many seconds (600), two at a time.
set -eu
cd "$(dirname "$0")"
seconds=${1:-600}
build=../../../build/fuzz
CXX=clang++ cmake -S ../.. -B $build -DGRADWIRE_FUZZ=ON -DGRADWIRE_SANITIZE=ON -DCMAKE_CXX_FLAGS=-fsanitize=fuzzer-no-link
cmake --build $build
cd $build/check/fuzz
for decoder in entries blocks; do mkdir -p corpus_$decoder; done
echo entries blocks | xargs -n 1 -P 2 sh -c \
  './fuzz_$1 -max_total_time='"$seconds"' -max_len=65536 -len_control=0 -print_final_stats=1 corpus_$1 2> log_$1 || { cat log_$1; exit 255; }' sh
tail -n 12 log_entries log_blocks
