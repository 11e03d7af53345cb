// Whole numbers of 2, 3, 4 or 8 bits in two's complement, packed, the first lowest: eight at a time in a 64-bit word.
#pragma once
#include "simd.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "payloads are little-endian");

namespace {

constexpr int64_t CHUNK = 2048;  // numbers packed at a time; of 4096, their addresses would get in each other's way

// `low` ones in every `width` bits of a word.
constexpr uint64_t ones(int low, int width) {
  uint64_t mask = 0;
  for (int at = 0; at < 64; at += width) mask |= ((1ull << low) - 1) << at;
  return mask;
}

// From eight bytes to 8 * BITS bits: neighbours move together, then pairs, then fours.
template <int BITS> GW_INLINE uint64_t squeeze(uint64_t v) {
  constexpr int gap = 8 - BITS;
  v &= ones(BITS, 8);
  v = (v | v >> gap) & ones(2 * BITS, 16);
  v = (v | v >> 2 * gap) & ones(4 * BITS, 32);
  return (v | v >> 4 * gap) & ((1ull << 8 * BITS) - 1);
}

// The way back, with signs extended; what lies above the codes is left out: the product fills the bits above a set sign
// bit.
template <int BITS> GW_INLINE uint64_t stretch(uint64_t v) {
  constexpr int gap = 8 - BITS;
  v = (v | v << 4 * gap) & ones(4 * BITS, 32);
  v = (v | v << 2 * gap) & ones(2 * BITS, 16);
  v = (v | v << gap) & ones(BITS, 8);
  const uint64_t signs = v & ones(BITS, 8) & ~ones(BITS - 1, 8);
  return v | signs * ((1u << (9 - BITS)) - 2);
}

template <int BITS> GW_INLINE void pack(const int8_t* numbers, int64_t n, uint8_t* codes) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8, codes += BITS) {
    const uint64_t word = squeeze<BITS>(read<uint64_t>(numbers + i));
    std::memcpy(codes, &word, BITS);
  }
  if (i == n) return;
  uint64_t word = 0;
  std::memcpy(&word, numbers + i, static_cast<size_t>(n - i));
  word = squeeze<BITS>(word);
  std::memcpy(codes, &word, static_cast<size_t>(((n - i) * BITS + 7) / 8));
}

template <int BITS> GW_INLINE void unpack(const uint8_t* codes, int64_t n, int8_t* numbers) {
  constexpr int64_t after = BITS == 3 ? 16 : 8;  // three bytes are read as four, where there are four
  int64_t i = 0;
  for (; i + after <= n; i += 8, codes += BITS) {
    uint64_t word = 0;
    std::memcpy(&word, codes, BITS == 3 ? 4 : BITS);
    write(numbers + i, stretch<BITS>(word));
  }
  for (; i < n; i += 8, codes += BITS) {
    const int64_t here = n - i < 8 ? n - i : 8;
    uint64_t word = 0;
    std::memcpy(&word, codes, static_cast<size_t>((here * BITS + 7) / 8));
    word = stretch<BITS>(word);
    std::memcpy(numbers + i, &word, static_cast<size_t>(here));
  }
}

void pack_codes(const int8_t* numbers, int64_t n, int bits, uint8_t* codes) {
  switch (bits) {
    case 2: return pack<2>(numbers, n, codes);
    case 3: return pack<3>(numbers, n, codes);
    case 4: return pack<4>(numbers, n, codes);
    default: copy(codes, numbers, n);
  }
}

void unpack_codes(const uint8_t* codes, int64_t n, int bits, int8_t* numbers) {
  switch (bits) {
    case 2: return unpack<2>(codes, n, numbers);
    case 3: return unpack<3>(codes, n, numbers);
    case 4: return unpack<4>(codes, n, numbers);
    default: copy(numbers, codes, n);
  }
}

}  // namespace
