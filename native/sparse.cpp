#include "sparse.h"

#include <algorithm>

#include "compact.h"
#include "entries.h"

namespace {

// Adds to elements that lie in several parts; indices mostly ascend.
class Scatter {
 public:
  explicit Scatter(const gw_span* spans) : span_(spans) {}

  void add(int64_t index, float value) {
    while (index >= start_ + span_->length) start_ += span_->length, ++span_;
    while (index < start_) --span_, start_ -= span_->length;
    span_->data[index - start_] += value;
  }

 private:
  const gw_span* span_;
  int64_t start_ = 0;
};

void clear(const gw_span* spans, int64_t n) {
  for (; n; n -= spans->length, ++spans) std::fill_n(spans->data, spans->length, 0.0f);
}

// Block by block of 65,536 elements, which stay in cache while each rank's entries are added to them.
int decode_entries(const gw_span* out, const gw_layout& layout, const gw_rows& rows, int64_t* cursors) {
  const Entries at{layout};
  for (int64_t rank = 0; rank < rows.ranks; ++rank) {
    if (check_entries(layout, rows.data + rank * rows.stride) < 0) return -1;
    cursors[rank] = 0;
  }
  clear(out, layout.n);
  Scatter scatter(out);
  for (int64_t block = 0; block < at.blocks(); ++block) {
    for (int64_t rank = 0; rank < rows.ranks; ++rank) {  // rank by rank: the same rounding on every replica
      const uint8_t* const row = rows.data + rank * rows.stride;
      int64_t j = cursors[rank];
      const int64_t end = j + at.count(row, block);
      for (; j < end; ++j) scatter.add(block << 16 | at.low(row, j), at.value(row, j));
      cursors[rank] = end;
    }
  }
  return 0;
}

int decode_compact(const gw_span* out, const gw_layout& layout, const gw_rows& rows, uint8_t* room) {
  float* const values = reinterpret_cast<float*>(room);
  uint32_t* const indices = reinterpret_cast<uint32_t*>(values + layout.k);
  clear(out, layout.n);
  for (int64_t rank = 0; rank < rows.ranks; ++rank) {
    const int64_t m = unpack_compact(layout, rows.data + rank * rows.stride, indices, values);
    if (m < 0) return -1;
    Scatter scatter(out);
    for (int64_t j = 0; j < m; ++j) scatter.add(indices[j], values[j]);
  }
  return 0;
}

}  // namespace

void pack_found(const gw_layout& layout, const Found& found, uint8_t* payload, float* x) {
  if (layout.format == GW_ENTRIES) return pack_entries(layout, found.indices, found.values, found.count, payload);
  for (int64_t j = 0; j < found.count; ++j) x[found.indices[j]] = found.values[j];
  pack_compact(layout, found.indices, found.values, found.count, payload);
  for (int64_t j = 0; j < found.count; ++j) x[found.indices[j]] -= found.values[j];
}

GW_API int64_t gw_entries_room(const gw_layout* layout, int64_t ranks) {
  return 8 * (layout->format == GW_ENTRIES ? ranks : layout->k);
}

GW_API int gw_decode_entries(const gw_span* out, const gw_layout* layout, const gw_rows* rows, uint8_t* room) {
  if (layout->format == GW_ENTRIES) return decode_entries(out, *layout, *rows, reinterpret_cast<int64_t*>(room));
  return decode_compact(out, *layout, *rows, room);
}

GW_API int gw_release(float* x, const gw_layout* layout, const uint8_t* payload, uint8_t* room) {
  if (layout->format == GW_ENTRIES) {
    if (check_entries(*layout, payload) < 0) return -1;
    const Entries at{*layout};
    for (int64_t block = 0, j = 0; block < at.blocks(); ++block) {
      for (int64_t end = j + at.count(payload, block); j < end; ++j)
        x[block << 16 | at.low(payload, j)] -= at.value(payload, j);
    }
    return 0;
  }
  float* const values = reinterpret_cast<float*>(room);
  uint32_t* const indices = reinterpret_cast<uint32_t*>(values + layout->k);
  const int64_t m = unpack_compact(*layout, payload, indices, values);
  for (int64_t j = 0; j < m; ++j) x[indices[j]] -= values[j];
  return m < 0 ? -1 : 0;
}

GW_API void gw_pack_entries(const gw_layout* layout, const uint32_t* indices, float* values, int64_t m,
                            uint8_t* payload) {
  if (layout->format == GW_ENTRIES) pack_entries(*layout, indices, values, m, payload);
  else pack_compact(*layout, indices, values, m, payload);
}

GW_API int64_t gw_unpack_entries(const gw_layout* layout, const uint8_t* payload, uint32_t* indices, float* values) {
  if (layout->format == GW_COMPACT) return unpack_compact(*layout, payload, indices, values);
  const int64_t m = check_entries(*layout, payload);
  const Entries at{*layout};
  for (int64_t block = 0, j = 0; j < m; ++block) {
    for (int64_t end = j + at.count(payload, block); j < end; ++j) {
      indices[j] = static_cast<uint32_t>(block << 16 | at.low(payload, j));
      values[j] = at.value(payload, j);
    }
  }
  return m;
}
