#include "entries.h"

#include <algorithm>

namespace {

// Half-way between two levels on a logarithmic scale: below it, the next one is nearer.
constexpr float EDGE[LEVELS - 1] = {0.771105409f,  0.458502024f,  0.272626936f,  0.162104949f,
                                    0.0963881761f, 0.0573127531f, 0.0340783671f};

// The largest magnitude of each group.
void pack_scales(const uint32_t* indices, const float* values, int64_t m, uint8_t* payload) {
  for (int64_t j = 0; j < m;) {
    const uint32_t group = indices[j] >> GROUP_BITS;
    uint32_t most = 0;
    for (; j < m && indices[j] >> GROUP_BITS == group; ++j) most = std::max(most, magnitude_bits(values[j]));
    write(payload + 2 * group, to_bfloat16(float_of(most)));
  }
}

int code_of(float value, float scale) {
  const float magnitude = float_of(magnitude_bits(value));
  int level = 0;
  for (const float edge : EDGE) level += magnitude < scale * edge;
  return level | static_cast<int>(bits_of(value) >> 28 & 8);
}

void pack_levels(const Entries& at, const uint32_t* indices, float* values, int64_t m, uint8_t* payload) {
  pack_scales(indices, values, m, payload);
  PlaceWriter places(at.places, payload + at.places_at());
  uint8_t* const codes = payload + at.values_at();
  int64_t sent = 0;
  for (int64_t j = 0; j < m; ++j) {
    if (values[j] == 0) continue;
    const float scale = scale_at(payload, indices[j]);
    const int code = code_of(values[j], scale);
    places.put(indices[j]);
    codes[sent / 2] = static_cast<uint8_t>(codes[sent / 2] | code << 4 * (sent % 2));
    values[j] = value_of(code, scale);
    ++sent;
  }
  places.finish();
}

}  // namespace

void pack_entries(const gw_layout& layout, const uint32_t* indices, float* values, int64_t m, uint8_t* payload) {
  const Entries at(layout);
  std::memset(payload, 0, static_cast<size_t>(at.bytes()));
  if (at.has_levels()) return pack_levels(at, indices, values, m, payload);
  if (at.value_bits) copy(payload + at.values_at(), values, 4 * m);
  PlaceWriter places(at.places, payload);
  for (int64_t j = 0; j < m; ++j) places.put(indices[j]);
  places.finish();
}
