// A pass over next = decay * old + weight * gradient, tile by tile, across the segments' ends.
#pragma once
#include "kernels.h"
#include "numbers.h"

inline int64_t element_bytes(const gw_segment& segment) { return segment.dtype == GW_FLOAT32 ? 4 : 2; }

inline const char* gradient_at(const gw_segment& segment, int64_t i) {
  if (segment.dtype == GW_ABSENT) return nullptr;
  return static_cast<const char*>(segment.gradient) + i * element_bytes(segment);
}

inline const char* old_at(const gw_addends& a, int64_t i) {
  return a.old ? static_cast<const char*>(a.old) + i * (a.old_dtype == GW_FLOAT32 ? 4 : 2) : nullptr;
}

// next = decay * old + weight * gradient, of some elements; false where a result is not finite. What decays becomes 0
// below the least normal number, where it would stop at a number that takes a processor ten times as long.
inline bool add_in(const gw_addends& a, float* next, const void* old, const void* gradient, int64_t dtype, int64_t n) {
  const float least = old && a.decay < 1 ? float_of(TINY) : 0;
  if (!old || a.old_dtype == GW_FLOAT32) {
    return kernels().add(next, static_cast<const float*>(old), gradient, dtype, n, a.decay, a.weight, least);
  }
  kernels().add(next, nullptr, gradient, dtype, n, 0, a.weight, 0);
  return kernels().add(next, next, old, a.old_dtype, n, 1, a.decay, least);  // as if `old` were the gradient
}

class Adding {
 public:
  explicit Adding(const gw_addends& addends) : a_(addends), segment_(addends.segments) {}

  // Adds in the next `width` elements, and returns them.
  float* next(int64_t width) {
    float* const tile = a_.next + at_;
    while (width) {
      while (inside_ == segment_->length) ++segment_, inside_ = 0;
      const int64_t rest = segment_->length - inside_, piece = rest < width ? rest : width;
      finite_ &= add_in(a_, a_.next + at_, old_at(a_, at_), gradient_at(*segment_, inside_), segment_->dtype, piece);
      at_ += piece, inside_ += piece, width -= piece;
    }
    return tile;
  }

  // What comes after the elements that `next` returned last.
  Ahead ahead() const {
    const auto address = [](const void* at) { return reinterpret_cast<uintptr_t>(at); };
    const float* const next = a_.next + at_;
    const bool wide = a_.old && a_.old_dtype == GW_FLOAT32;
    return {address(next), wide ? address(old_at(a_, at_)) : address(next), address(gradient_at(*segment_, inside_)),
            element_bytes(*segment_)};
  }

  bool finite() const { return finite_; }

 private:
  const gw_addends& a_;
  const gw_segment* segment_;
  bool finite_ = true;
  int64_t at_ = 0, inside_ = 0;
};
