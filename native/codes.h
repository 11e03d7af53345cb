// Whole numbers of 2, 3, 4 or 8 bits in two's complement, packed, the first lowest: in vectors those of 2 and 4 bits,
// where neighbours become one byte, and eight at a time in a 64-bit word those of 3, and what is left.
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

constexpr int64_t JOINED = 4 * LANES;  // the bytes of a vector

// Neighbours of JOINED bytes with BITS bits each become one byte.
template <int BITS> GW_INLINE void join(const void* from, void* to) {
  constexpr auto low = static_cast<uint16_t>(ones(BITS, 16)), high = static_cast<uint16_t>(low << BITS);
  const Pairs v = load<Pairs>(from);
  store(to, narrow((v & low) | (v >> (8 - BITS) & high)));
}

// The way back, to JOINED bytes; what lies above a byte's BITS is left out.
template <int BITS> GW_INLINE Pairs part(const void* from) {
  constexpr auto low = static_cast<uint16_t>(ones(BITS, 8));
  const Pairs v = widen(load<Octets>(from));
  return (v | v << (8 - BITS)) & low;
}

template <int BITS> GW_INLINE void store_signed(void* to, Pairs v) {
  constexpr auto sign = static_cast<int8_t>(1 << (BITS - 1));
  store(to, ((Numbers)v ^ sign) - sign);
}

// As many of n numbers as fill vectors; returns how many.
template <int BITS> GW_INLINE int64_t pack_vectors(const int8_t* numbers, int64_t n, uint8_t* codes) {
  int64_t i = 0;
  if (BITS == 4) {
    for (; i + JOINED <= n; i += JOINED) join<4>(numbers + i, codes + i / 2);
  } else if (BITS == 2) {
    uint8_t fours[JOINED];
    for (; i + 2 * JOINED <= n; i += 2 * JOINED) {
      join<2>(numbers + i, fours);
      join<2>(numbers + i + JOINED, fours + JOINED / 2);
      join<4>(fours, codes + i / 4);
    }
  }
  return i;
}

template <int BITS> GW_INLINE int64_t unpack_vectors(const uint8_t* codes, int64_t n, int8_t* numbers) {
  int64_t i = 0;
  if (BITS == 4) {
    for (; i + JOINED <= n; i += JOINED) store_signed<4>(numbers + i, part<4>(codes + i / 2));
  } else if (BITS == 2) {
    uint8_t fours[JOINED];
    for (; i + 2 * JOINED <= n; i += 2 * JOINED) {
      store(fours, part<4>(codes + i / 4));
      store_signed<2>(numbers + i, part<2>(fours));
      store_signed<2>(numbers + i + JOINED, part<2>(fours + JOINED / 2));
    }
  }
  return i;
}

template <int BITS> GW_INLINE void pack(const int8_t* numbers, int64_t n, uint8_t* codes) {
  int64_t i = pack_vectors<BITS>(numbers, n, codes);
  codes += i * BITS / 8;
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
  int64_t i = unpack_vectors<BITS>(codes, n, numbers);
  codes += i * BITS / 8;
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
