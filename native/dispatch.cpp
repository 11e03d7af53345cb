// Which level's kernels run: the machine's best, or what a test asks for.
#include <atomic>

#include "kernels.h"

namespace {

int best() {
#if defined(GW_X86)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    return 4;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2")) return 3;
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
