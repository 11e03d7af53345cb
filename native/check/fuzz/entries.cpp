#include "../../entries.h"

#include <cstdlib>

#include "input.h"

// All that reads payloads of entries, on a layout and rows from the fuzzer.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const int64_t value_bits[] = {0, 4, 32};
  Input input(data, size);
  any_level(input);
  const int64_t n = input.number(1, 200000), ranks = input.number(1, 3);
  const gw_layout layout{n, input.number(1, n), value_bits[input.number(0, 2)]};
  const int64_t nbytes = Entries(layout).bytes();
  const std::vector<uint8_t> payloads = input.bytes(nbytes * ranks);

  std::vector<float> values(static_cast<size_t>(layout.k));
  std::vector<uint32_t> indices(static_cast<size_t>(layout.k));
  const int64_t m = gw_unpack_entries(&layout, payloads.data(), indices.data(), values.data());
  if (m > layout.k) std::abort();
  for (int64_t j = 0; j < m; ++j)
    if (indices[static_cast<size_t>(j)] >= n) std::abort();
  if (!layout.value_bits) return 0;

  std::vector<uint8_t> room(static_cast<size_t>(gw_entries_room(ranks)));
  std::vector<float> first(static_cast<size_t>(n / 2)), second(static_cast<size_t>(n - n / 2));
  const gw_span out[] = {{first.data(), n / 2}, {second.data(), n - n / 2}};
  const gw_rows rows{payloads.data(), nbytes, ranks};
  const int decoded = gw_decode_entries(out, &layout, &rows, room.data());
  if (m < 0 && !decoded) std::abort();
  return 0;
}
