// What a fuzzer's bytes stand for: a few numbers, then payloads in memory of exactly their size, so that
// AddressSanitizer sees any step outside.
#pragma once
#include <cstring>
#include <vector>

#include "gradwire.h"

class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  // A number in [low, high].
  int64_t number(int64_t low, int64_t high) {
    uint32_t value = 0;
    take(&value, 3);
    return low + static_cast<int64_t>(value) % (high - low + 1);
  }

  // So many bytes; zeros where none are left.
  std::vector<uint8_t> bytes(int64_t count) {
    std::vector<uint8_t> found(static_cast<size_t>(count));
    take(found.data(), found.size());
    return found;
  }

 private:
  void take(void* to, size_t count) {
    const size_t here = count < size_ ? count : size_;
    if (here) std::memcpy(to, data_, here);
    data_ += here, size_ -= here;
  }

  const uint8_t* data_;
  size_t size_;
};

inline int any_level(Input& input) {
  static const int levels[] = {1, 3, 4};
  return gw_set_level(levels[input.number(0, 2)]);
}
