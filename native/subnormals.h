// Subnormal numbers count while an object lives, whatever the thread's switch says (torch.set_flush_denormal): where a
// bound is sought among magnitudes as integers, those that count as zero when compared would be lost.
#pragma once
#include <cstdint>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace {

class Subnormals {
 public:
  Subnormals() : before_(get()) { set(before_ & ~FLUSH); }
  ~Subnormals() { set(before_); }
  Subnormals(const Subnormals&) = delete;
  Subnormals& operator=(const Subnormals&) = delete;

 private:
#if defined(__SSE2__)
  using Word = uint32_t;
  static constexpr Word FLUSH = 0x8040;  // results, and operands
  static Word get() { return _mm_getcsr(); }
  static void set(Word word) { _mm_setcsr(word); }
#elif defined(__aarch64__)
  using Word = uint64_t;
  static constexpr Word FLUSH = 1 << 24;
  static Word get() {
    Word word;
    __asm__ volatile("mrs %0, fpcr" : "=r"(word));
    return word;
  }
  static void set(Word word) { __asm__ volatile("msr fpcr, %0" : : "r"(word)); }
#else
  using Word = uint32_t;
  static constexpr Word FLUSH = 0;
  static Word get() { return 0; }
  static void set(Word) {}
#endif

  const Word before_;
};

}  // namespace
