// `Compact`: about 10 bits an entry at a density of 1/16. Indices as Elias and Fano wrote them (Elias, J. ACM 1974,
// https://doi.org/10.1145/321812.321820), with room for k of n: index >> l, entry by entry, as the places of set bits,
// and the l lower bits beside. Values as sign and one of eight levels, a factor of 2^0.75 apart, below the largest of
// each 1,024 elements.
//
//   scales  ceil(n / 1024) bfloat16
//   upper   k + (n >> l) + 1 bits: bit (index >> l) + j is set for entry j; l = floor(log2(n / k))
//   lower   k * l bits
//   codes   k * 4 bits: level, and 8 for minus
//
// Each part fills whole words of 4 bytes; the first element lowest. Fewer set bits than k mean fewer entries.
#pragma once
#include "gradwire.h"
#include "numbers.h"

namespace {

struct Compact {
  static constexpr int group_bits = 10;
  int64_t n, k;
  int low_bits;

  explicit Compact(const gw_layout& layout) : n(layout.n), k(layout.k), low_bits(0) {
    while (n >> (low_bits + 1) >= k) ++low_bits;
  }

  static int64_t words(int64_t bits) { return (bits + 31) / 32 * 4; }
  int64_t groups() const { return ((n - 1) >> group_bits) + 1; }
  int64_t upper_at() const { return words(16 * groups()); }
  int64_t lower_at() const { return upper_at() + words(k + (n >> low_bits) + 1); }
  int64_t codes_at() const { return lower_at() + words(k * low_bits); }
  int64_t bytes() const { return codes_at() + words(4 * k); }
};

}  // namespace

// `values` becomes what was sent.
void pack_compact(const gw_layout& layout, const uint32_t* indices, float* values, int64_t m, uint8_t* payload);
// The entries and how many; -1 where there are more than k, or an index is out of range.
int64_t unpack_compact(const gw_layout& layout, const uint8_t* payload, uint32_t* indices, float* values);
