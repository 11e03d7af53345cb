// Prints one number for all that the kernels compute from fixed inputs. It is the same at every level and on every
// machine: so what cannot be tested from Python, another processor under an emulator, is compared by it.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

#include "../gradwire.h"

namespace {

uint64_t hash = 1469598103934665603ull;  // FNV-1a

template <class T> void digest(const std::vector<T>& values) {
  const uint8_t* bytes = reinterpret_cast<const uint8_t*>(values.data());
  for (size_t i = 0; i < values.size() * sizeof(T); ++i) hash = (hash ^ bytes[i]) * 1099511628211ull;
}

// Numbers of all sizes, by a generator that every machine computes alike.
std::vector<float> numbers(int64_t n, uint32_t seed) {
  std::vector<float> x(static_cast<size_t>(n));
  for (float& value : x) {
    seed = seed * 1664525u + 1013904223u;
    value = std::ldexp(static_cast<float>(static_cast<int32_t>(seed)) * 0x1p-31f, static_cast<int>(seed >> 8 & 15) - 8);
  }
  return x;
}

struct Sum {
  std::vector<float> old, gradient, next;
  gw_segment segments[2];
  gw_addends addends;

  explicit Sum(int64_t n, int64_t dtype) : old(numbers(n, 1)), gradient(numbers(n, 2)), next(static_cast<size_t>(n)) {
    const int64_t first = n / 3, bytes = dtype == GW_FLOAT32 ? 4 : 2;
    const char* data = reinterpret_cast<const char*>(gradient.data());
    segments[0] = {data, first, dtype};
    segments[1] = {data + first * bytes, n - first, dtype};
    addends = {next.data(), old.data(), segments, 2, 0.9f, 0.3f, GW_FLOAT32};
  }
};

void entries(int64_t n) {
  for (const int64_t value_bits : {32, 4}) {
    const gw_layout layout{n, n / 50 + 1, value_bits};
    std::vector<uint8_t> payload(static_cast<size_t>(8 * n + 64)),
        room(static_cast<size_t>(gw_select_room(n, layout.k)));
    Sum sum(n, GW_FLOAT32);
    gw_add_select(&sum.addends, &layout, payload.data(), room.data());
    digest(payload), digest(sum.next);
    std::vector<float> out(static_cast<size_t>(n));
    const gw_span span{out.data(), n};
    const gw_rows rows{payload.data(), 0, 3};
    room.resize(static_cast<size_t>(gw_entries_room(3)));
    if (gw_decode_entries(&span, &layout, &rows, room.data())) std::puts("not decoded");
    digest(out);
  }
}

void blocks(int64_t n, gw_code code) {
  const int64_t lengths[] = {n / 2, n - n / 2}, codes_at = 8 * n;
  const gw_blocks layout{lengths, 2, code};
  std::vector<uint8_t> payload(static_cast<size_t>(10 * n + 64));
  Sum sum(n, GW_FLOAT32);
  uint64_t noise[] = {1, 2, 3, 4};
  gw_add_quantise(&sum.addends, &layout, payload.data(), payload.data() + codes_at, noise, 1);
  digest(payload), digest(sum.next);
  std::vector<float> out(static_cast<size_t>(n));
  const gw_span span{out.data(), n};
  const gw_rows rows{payload.data(), 0, 3};
  std::vector<uint8_t> room(static_cast<size_t>(gw_blocks_room(code.block)));
  gw_decode_blocks(&span, &layout, &rows, codes_at, room.data());
  digest(out);
}

void rows(int64_t length) {
  const std::vector<float> x = numbers(5 * length, 3);
  std::vector<float> room(static_cast<size_t>(3 * length + 64));
  const int64_t k = length / 20 + 1;
  std::vector<uint32_t> indices(static_cast<size_t>(5 * k));
  gw_top_k_rows(x.data(), 5, length, k, indices.data(), room.data());
  digest(indices);
}

void thin(int64_t rows, int64_t columns, int64_t rank) {
  const auto room = [](int64_t n) { return std::vector<float>(static_cast<size_t>(n)); };
  const gw_matrices shape{2, rows * columns + 3, rows, columns, rank};
  std::vector<float> m = numbers(2 * shape.stride, 4), p = room(2 * rank * rows), q = numbers(2 * rank * columns, 5);
  gw_project_rows(m.data(), &shape, q.data(), p.data());
  digest(p);
  gw_project_columns(m.data(), &shape, p.data(), q.data());
  digest(q);
  for (const int subtract : {1, 0}) {
    gw_product(m.data(), &shape, p.data(), q.data(), subtract);
    digest(m);
  }
}

}  // namespace

int main() {
  for (const int level : {1, 3, 4}) {
    if (gw_set_level(level) != level) continue;
    hash = 1469598103934665603ull;
    for (const int64_t n : {1, 7, 100, 5000, 70001}) {
      entries(n), rows(n), thin(n % 97 + 1, n / 97 + 1, n % 7 + 1);
      for (const gw_code code : {gw_code{GW_NEAREST, 8, 127, 128},
                                 {GW_NEAREST, 4, 7, 64},
                                 {GW_NEAREST, 3, 3, 8},
                                 {GW_NEAREST, 2, 1, 16},
                                 {GW_STOCHASTIC, 8, 127, 1024},
                                 {GW_STOCHASTIC, 2, 1, 72},
                                 {GW_SHARED_EXPONENT, 8, 127, 128},
                                 {GW_SIGN, 1, 1, 256},
                                 {GW_SIGN, 1, 1, 8192},
                                 {GW_ONE_BIT, 1, 1, 4096},
                                 {GW_ONE_BIT, 1, 1, 8192}})
        blocks(n, code);
      Sum fading(n, GW_ABSENT);  // about the least normal number
      for (float& value : fading.old) value = std::ldexp(value, -126);
      gw_add_in(&fading.addends, n);
      digest(fading.next);
      for (const int64_t dtype : {GW_BFLOAT16, GW_FLOAT16}) {
        Sum sum(n, dtype);
        gw_add_in(&sum.addends, n);
        for (float& value : sum.next) value = value == value ? value : 0;  // which NaN it is may differ
        digest(sum.next);
      }
    }
    std::printf("level %d: %016llx\n", level, static_cast<unsigned long long>(hash));
  }
  return 0;
}
