// k of n entries, as `value_bits` says: float32 values (32), levels (4), or none, only where they are (0).
//
//   scales  for levels ceil(n / 1024) bfloat16, the largest magnitude of each 1,024 elements
//   places  see places.h
//   values  k float32; or k * 4 bits: one of eight levels, a factor of 2^0.75 apart, below the scale, and 8 for minus
//
// Each part fills whole words of 4 bytes; the first element lowest.
#pragma once
#include "places.h"

namespace {

constexpr int LEVELS = 8;
// 2^(-0.75 e).
constexpr float LEVEL[LEVELS] = {1.0f,   0.594603539f,  0.353553385f,  0.210224107f,
                                 0.125f, 0.0743254423f, 0.0441941731f, 0.0262780134f};
constexpr int GROUP_BITS = 10;

struct Entries {
  Places places;
  int64_t value_bits;

  explicit Entries(const gw_layout& layout) : places(layout.n, layout.k), value_bits(layout.value_bits) {}

  bool has_levels() const { return value_bits == 4; }
  int64_t places_at() const { return has_levels() ? in_words(16 * (((places.n - 1) >> GROUP_BITS) + 1)) : 0; }
  int64_t values_at() const { return places_at() + places.bytes(); }
  int64_t bytes() const { return values_at() + in_words(value_bits * places.k); }
};

inline float scale_at(const uint8_t* payload, uint32_t index) {
  return from_bfloat16(read<uint16_t>(payload + 2 * (index >> GROUP_BITS)));
}

inline float value_of(int code, float scale) {
  const uint32_t minus = static_cast<uint32_t>(code & 8) << 28;  // signs are random: a branch would be taken wrongly
  return float_of(bits_of(scale * LEVEL[code & 7]) ^ minus);
}

// One entry after another.
class EntryReader {
 public:
  EntryReader(const Entries& at, const uint8_t* payload)
      : places_(at.places, payload + at.places_at()),
        payload_(payload),
        values_(payload + at.values_at()),
        has_levels_(at.has_levels()) {}

  // The next index: see `PlaceReader`.
  int64_t next() { return places_.next(); }
  int64_t count() const { return places_.count(); }

  // The value of the entry whose index came last.
  float value(int64_t index) const {
    const int64_t j = places_.count() - 1;
    if (!has_levels_) return read<float>(values_ + 4 * j);
    return value_of(values_[j / 2] >> 4 * (j % 2) & 15, scale_at(payload_, static_cast<uint32_t>(index)));
  }

 private:
  PlaceReader places_;
  const uint8_t *payload_, *values_;
  bool has_levels_;
};

}  // namespace

// m entries to a payload. With levels `values` becomes what was sent; zeros, which no level stands for, take no room.
void pack_entries(const gw_layout& layout, const uint32_t* indices, float* values, int64_t m, uint8_t* payload);
