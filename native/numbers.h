// Numbers as bits: magnitudes that compare as integers, and bfloat16.
#pragma once
#include <cstdint>
#include <cstring>

namespace {

constexpr uint32_t MAGNITUDE = 0x7fffffff;
constexpr uint32_t TINY = 0x00800000;      // the least normal number: smaller ones count as zero
constexpr uint32_t INFINITE = 0x7f800000;  // NaN lies above

inline uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}

inline float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

inline uint32_t magnitude_bits(float value) { return bits_of(value) & MAGNITUDE; }

inline bool is_finite(float value) { return magnitude_bits(value) < INFINITE; }

template <class T> inline T read(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <class T> inline void write(void* to, T value) { std::memcpy(to, &value, sizeof value); }

// Nothing may lie nowhere: an empty tensor has no address, which memcpy would not take.
inline void copy(void* to, const void* from, int64_t bytes) {
  if (bytes) std::memcpy(to, from, static_cast<size_t>(bytes));
}

// To the nearest bfloat16, ties to even; what would be infinite becomes the largest.
inline uint16_t to_bfloat16(float value) {
  const uint32_t bits = bits_of(value);
  if ((bits & MAGNITUDE) > INFINITE) return static_cast<uint16_t>(bits >> 16 | 0x40);
  const uint32_t rounded = bits + 0x7fff + (bits >> 16 & 1);
  const bool overflow = (rounded & MAGNITUDE) >= INFINITE;
  return static_cast<uint16_t>(overflow ? (bits >> 16 & 0x8000) | 0x7f7f : rounded >> 16);
}

inline float from_bfloat16(uint16_t half) { return float_of(static_cast<uint32_t>(half) << 16); }

}  // namespace
