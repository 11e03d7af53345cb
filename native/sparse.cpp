#include "sparse.h"

#include <algorithm>
#include <new>

#include "entries.h"

namespace {

constexpr int64_t BLOCK = 1 << 16;  // elements that stay in cache while all ranks' entries are added to them

// Elements that lie in several parts; indices mostly ascend.
class Scatter {
 public:
  explicit Scatter(const gw_span* spans) : span_(spans) {}

  void add(int64_t index, float value) { at(index) += value; }

  void clear(int64_t begin, int64_t end) {
    while (begin < end) {
      float* const from = &at(begin);
      const int64_t piece = std::min(end, start_ + span_->length) - begin;
      std::fill_n(from, piece, 0.0f);
      begin += piece;
    }
  }

 private:
  float& at(int64_t index) {
    while (index >= start_ + span_->length) start_ += span_->length, ++span_;
    while (index < start_) --span_, start_ -= span_->length;
    return span_->data[index - start_];
  }

  const gw_span* span_;
  int64_t start_ = 0;
};

// One rank's payload, and the index that is its next.
struct Cursor {
  EntryReader reader;
  int64_t index;

  Cursor(const Entries& at, const uint8_t* payload) : reader(at, payload), index(reader.next()) {}

  // Adds what lies before `end`; false where this is no payload.
  bool add_until(int64_t end, Scatter& scatter) {
    for (; index >= 0 && index < end; index = reader.next()) scatter.add(index, reader.value(index));
    return index >= 0;
  }
};

}  // namespace

void pack_found(const gw_layout& layout, const Found& found, uint8_t* payload, float* x) {
  if (layout.value_bits == 32) return pack_entries(layout, found.indices, found.values, found.count, payload);
  for (int64_t j = 0; j < found.count; ++j) x[found.indices[j]] = found.values[j];
  pack_entries(layout, found.indices, found.values, found.count, payload);
  for (int64_t j = 0; j < found.count; ++j) x[found.indices[j]] -= found.values[j];
}

GW_API int64_t gw_entries_room(int64_t ranks) { return ranks * static_cast<int64_t>(sizeof(Cursor)); }

GW_API int gw_decode_entries(const gw_span* out, const gw_layout* layout, const gw_rows* rows, uint8_t* room) {
  const Entries at(*layout);
  Cursor* const cursors = reinterpret_cast<Cursor*>(room);
  for (int64_t rank = 0; rank < rows->ranks; ++rank) new (cursors + rank) Cursor(at, rows->data + rank * rows->stride);
  Scatter scatter(out);
  for (int64_t start = 0; start < layout->n; start += BLOCK) {
    const int64_t end = std::min(start + BLOCK, layout->n);
    scatter.clear(start, end);
    for (int64_t rank = 0; rank < rows->ranks; ++rank)  // rank by rank: the same rounding on every replica
      if (!cursors[rank].add_until(end, scatter)) return -1;
  }
  return 0;
}

GW_API void gw_pack_entries(const gw_layout* layout, const uint32_t* indices, float* values, int64_t m,
                            uint8_t* payload) {
  pack_entries(*layout, indices, values, m, payload);
}

GW_API int64_t gw_unpack_entries(const gw_layout* layout, const uint8_t* payload, uint32_t* indices, float* values) {
  EntryReader reader(Entries(*layout), payload);
  while (true) {
    const int64_t index = reader.next(), j = reader.count() - 1;
    if (index < 0) return -1;
    if (index == layout->n) return reader.count();
    indices[j] = static_cast<uint32_t>(index);
    if (layout->value_bits) values[j] = reader.value(index);
  }
}
