#include "largest.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "addends.h"

namespace {

constexpr int64_t PIECE = 256;

// `count` elements of so many bytes, each `stride` after the one before.
template <int BYTES> void gather(const void* from, int64_t stride, int64_t count, void* to) {
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(static_cast<char*>(to) + i * BYTES, static_cast<const char*>(from) + i * stride * BYTES, BYTES);
  }
}

// Every `stride`-th element that will be; returns how many.
int64_t sample(const gw_addends& a, int64_t stride, float* into) {
  float old[PIECE], gradient[PIECE];
  int64_t start = 0, at = 0, m = 0;
  for (const gw_segment *segment = a.segments, *end = segment + a.count; segment < end; ++segment) {
    while (at < start + segment->length) {
      const int64_t left = (start + segment->length - at + stride - 1) / stride, count = std::min(PIECE, left);
      if (a.old && a.old_dtype == GW_FLOAT32) gather<4>(old_at(a, at), stride, count, old);
      else if (a.old) gather<2>(old_at(a, at), stride, count, old);
      const char* from = gradient_at(*segment, at - start);
      if (segment->dtype == GW_FLOAT32) gather<4>(from, stride, count, gradient);
      else if (from) gather<2>(from, stride, count, gradient);
      add_in(a, into + m, a.old ? old : nullptr, gradient, segment->dtype, count);
      at += count * stride, m += count;
    }
    start += segment->length;
  }
  return m;
}

// As gradwire.ops.sample.stride_of: at most `most` of n elements, at all places of a convolution's kernels.
int64_t stride_of(int64_t n, int64_t most) {
  int64_t stride = (n + most - 1) / most;
  while (std::gcd(stride, int64_t{2 * 3 * 5 * 7}) > 1) ++stride;
  return stride;
}

}  // namespace

// By bisection of the integers that magnitudes are: counting is what vectors do best, and what this is asked of mostly
// lies in a cache. It ends early where a bound parts exactly k from the others.
Kth kth_largest(const float* x, int64_t n, int64_t k, uint32_t least) {
  const auto reach = [=](uint32_t bits) { return kernels().count(x, n, float_of(bits)); };
  if (reach(least) <= k) return {least - 1, 0};
  uint32_t low = least, high = INFINITE + 1;  // more than k reach `low`, fewer reach `high`
  while (high - low > 1) {
    const uint32_t middle = low + (high - low) / 2;
    const int64_t count = reach(middle);
    if (count == k) return {middle - 1, 0};
    (count > k ? low : high) = middle;
  }
  return {low, low == INFINITE ? k : k - reach(low + 1)};
}

float sampled_bound(const gw_addends& addends, int64_t n, int64_t k, float* room) {
  const float tiny = float_of(TINY);
  if (n <= 2 * TILE) return tiny;
  const int64_t wanted = std::min(SAMPLE, n / 4);
  const int64_t m = sample(addends, stride_of(n, wanted), room);
  const double rank = static_cast<double>(k) / static_cast<double>(n) * static_cast<double>(m);
  const int64_t lower = static_cast<int64_t>(rank + 4 * std::sqrt(rank) + 4);  // four standard deviations
  if (lower >= m) return tiny;
  const Kth kth = kth_largest(room, m, lower, TINY);
  return kth.bits < TINY ? tiny : float_of(kth.bits);
}
