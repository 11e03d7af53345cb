// Which level's kernels run: the machine's best, or what a test asks for.
#include <atomic>
#if defined(GW_X86)
#include <cpuid.h>
#endif

#include "kernels.h"

namespace {

#if defined(GW_X86)
// Of what CMakeLists.txt compiles AVX2's level with, that for which GCC 9's __builtin_cpu_supports has no word.
bool has_half_floats_and_leading_zeros() {
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) && c & bit_F16C && __get_cpuid(0x80000001, &a, &b, &c, &d) && c & bit_LZCNT;
}

bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
         __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt") && has_half_floats_and_leading_zeros();
}

bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif

int best() {
#if defined(GW_X86)
  __builtin_cpu_init();
  if (has_avx2()) return has_avx512() ? 4 : 3;  // AVX-512's level has all of AVX2's instructions
#endif
  return 1;
}

std::atomic<int> level_in_use{0};

}  // namespace

GW_API int gw_abi(void) { return GW_ABI; }

GW_API int gw_level(void) {
  const int level = level_in_use.load(std::memory_order_relaxed);
  return level ? level : gw_set_level(0);
}

GW_API int gw_set_level(int level) {
  const int most = best();
  const bool known = level == 1 || level == 3 || level == 4;
  const int chosen = known && level <= most ? level : most;
  level_in_use.store(chosen, std::memory_order_relaxed);
  return chosen;
}

const Kernels& kernels() {
#if defined(GW_X86)
  const int level = gw_level();
  if (level == 4) return avx512_kernels;
  if (level == 3) return avx2_kernels;
#endif
  return baseline_kernels;
}
