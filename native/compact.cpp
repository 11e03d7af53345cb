#include "compact.h"

#include <algorithm>

namespace {

constexpr int LEVELS = 8;
// 2^(-0.75 e), and what lies half-way between two of them on a logarithmic scale: below it, the next one is nearer.
constexpr float LEVEL[LEVELS] = {1.0f,   0.59460356f, 0.35355338f,  0.21022411f,
                                 0.125f, 0.07432544f, 0.044194173f, 0.026278013f};
constexpr float EDGE[LEVELS - 1] = {0.77110541f,  0.45850202f,  0.27262694f, 0.16210496f,
                                    0.096388176f, 0.057312753f, 0.034078367f};

// Fields of at most 32 bits, one after another, in words of 32.
class BitWriter {
 public:
  explicit BitWriter(uint8_t* to) : to_(to) {}

  void put(uint32_t field, int width) {
    word_ |= static_cast<uint64_t>(field) << filled_;
    filled_ += width;
    if (filled_ < 32) return;
    write(to_, static_cast<uint32_t>(word_));
    to_ += 4, word_ >>= 32, filled_ -= 32;
  }

  void finish() {
    if (filled_) write(to_, static_cast<uint32_t>(word_));
  }

 private:
  uint8_t* to_;
  uint64_t word_ = 0;
  int filled_ = 0;
};

class BitReader {
 public:
  explicit BitReader(const uint8_t* from) : from_(from) {}

  uint32_t get(int width) {
    if (left_ < width) {
      word_ |= static_cast<uint64_t>(read<uint32_t>(from_)) << left_;
      from_ += 4, left_ += 32;
    }
    const uint32_t field = static_cast<uint32_t>(word_ & ((1ull << width) - 1));
    word_ >>= width, left_ -= width;
    return field;
  }

 private:
  const uint8_t* from_;
  uint64_t word_ = 0;
  int left_ = 0;
};

float scale_at(const uint8_t* payload, uint32_t index) {
  return from_bfloat16(read<uint16_t>(payload + 2 * (index >> Compact::group_bits)));
}

// The largest magnitude of each group.
void pack_scales(const uint32_t* indices, const float* values, int64_t m, uint8_t* payload) {
  for (int64_t j = 0; j < m;) {
    const uint32_t group = indices[j] >> Compact::group_bits;
    uint32_t most = 0;
    for (; j < m && indices[j] >> Compact::group_bits == group; ++j) most = std::max(most, magnitude_bits(values[j]));
    write(payload + 2 * group, to_bfloat16(float_of(most)));
  }
}

uint32_t level_of(float value, float scale) {
  const float magnitude = float_of(magnitude_bits(value));
  uint32_t level = 0;
  for (const float edge : EDGE) level += magnitude < scale * edge;
  return level;
}

float value_of(uint32_t code, float scale) {
  const float magnitude = scale * LEVEL[code & 7];
  return code & 8 ? -magnitude : magnitude;
}

}  // namespace

void pack_compact(const gw_layout& layout, const uint32_t* indices, float* values, int64_t m, uint8_t* payload) {
  const Compact at(layout);
  std::memset(payload, 0, static_cast<size_t>(at.bytes()));
  pack_scales(indices, values, m, payload);
  uint8_t* const upper = payload + at.upper_at();
  BitWriter lower(payload + at.lower_at()), codes(payload + at.codes_at());
  const uint32_t low = (1u << at.low_bits) - 1;
  for (int64_t j = 0; j < m; ++j) {
    const float scale = scale_at(payload, indices[j]);
    const uint32_t code = level_of(values[j], scale) | (values[j] < 0 ? 8 : 0);
    const int64_t place = (indices[j] >> at.low_bits) + j;
    upper[place / 8] = static_cast<uint8_t>(upper[place / 8] | 1 << place % 8);
    lower.put(indices[j] & low, at.low_bits);
    codes.put(code, 4);
    values[j] = value_of(code, scale);
  }
  lower.finish();
  codes.finish();
}

int64_t unpack_compact(const gw_layout& layout, const uint8_t* payload, uint32_t* indices, float* values) {
  const Compact at(layout);
  BitReader lower(payload + at.lower_at()), codes(payload + at.codes_at());
  int64_t m = 0;
  for (int64_t word_at = at.upper_at(); word_at < at.lower_at(); word_at += 4) {
    for (uint32_t word = read<uint32_t>(payload + word_at); word; word &= word - 1, ++m) {
      if (m == at.k) return -1;
      const int64_t place = 8 * (word_at - at.upper_at()) + __builtin_ctz(word);
      const int64_t index = (place - m) << at.low_bits | lower.get(at.low_bits);
      if (index >= at.n) return -1;
      indices[m] = static_cast<uint32_t>(index);
      values[m] = value_of(codes.get(4), scale_at(payload, indices[m]));
    }
  }
  return m;
}
