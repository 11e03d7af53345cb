// All that reads payloads of entries, on a layout and rows from the fuzzer.
#pragma once
#include <cstdlib>

#include "input.h"

inline int decode_all(Input input, int64_t format, int64_t nbytes(const gw_layout&)) {
  any_level(input);
  const int64_t n = input.number(1, 200000), ranks = input.number(1, 3);
  const gw_layout layout{n, input.number(1, n), format};
  const int64_t size = nbytes(layout);
  const std::vector<uint8_t> payloads = input.bytes(size * ranks);
  std::vector<uint8_t> room(static_cast<size_t>(gw_entries_room(&layout, ranks)));

  std::vector<float> first(static_cast<size_t>(n / 2)), second(static_cast<size_t>(n - n / 2));
  const gw_span out[] = {{first.data(), n / 2}, {second.data(), n - n / 2}};
  const gw_rows rows{payloads.data(), size, ranks};
  gw_decode_entries(out, &layout, &rows, room.data());

  std::vector<float> x(static_cast<size_t>(n)), values(static_cast<size_t>(layout.k));
  std::vector<uint32_t> indices(static_cast<size_t>(layout.k));
  const int released = gw_release(x.data(), &layout, payloads.data(), room.data());
  const int64_t m = gw_unpack_entries(&layout, payloads.data(), indices.data(), values.data());
  if ((m < 0) != (released < 0) || m > layout.k) std::abort();
  for (int64_t j = 0; j < m; ++j)
    if (indices[static_cast<size_t>(j)] >= n) std::abort();
  return 0;
}
