// Block quantisation: gradients to a payload in one pass, and payloads to their sum.
#include "addends.h"
#include "numbers.h"

namespace {

// Whole blocks that lie in the first-level cache together.
int64_t tile_of(int64_t block) { return (block < TILE ? TILE / block : 1) * block; }

// Calls body(width) for each tile; tiles begin anew with each segment, as blocks do.
template <class Body> void each_tile(const gw_blocks& blocks, Body body) {
  const int64_t tile = tile_of(blocks.code.block);
  for (int64_t segment = 0; segment < blocks.count; ++segment) {
    for (int64_t rest = blocks.lengths[segment]; rest;) {
      const int64_t width = rest < tile ? rest : tile;
      body(width);
      rest -= width;
    }
  }
}

// The parts of the output. A tile that lies in several is summed in `room`, and then copied to them.
class Output {
 public:
  Output(const gw_span* spans, float* room) : span_(spans), room_(room) {}

  // Calls sum(tile) for the next `width` elements.
  template <class Sum> void next(int64_t width, Sum sum) {
    skip_empty();
    if (width <= span_->length - inside_) {
      sum(span_->data + inside_);
      inside_ += width;
      return;
    }
    sum(room_);
    for (const float *from = room_, *const end = room_ + width; from < end;) {
      skip_empty();
      const int64_t rest = span_->length - inside_, piece = rest < end - from ? rest : end - from;
      copy(span_->data + inside_, from, 4 * piece);
      from += piece, inside_ += piece;
    }
  }

 private:
  void skip_empty() {
    while (inside_ == span_->length) ++span_, inside_ = 0;
  }

  const gw_span* span_;
  float* room_;
  int64_t inside_ = 0;
};

int64_t scale_bytes(const gw_code& code) { return has_short_scales(code) ? 2 : code.kind == GW_ONE_BIT ? 8 : 4; }

// Where a row's tile has its scales and codes, moved on tile by tile alike for all rows.
struct Cursor {
  int64_t scales, codes;
};

Cursor after(Cursor at, int64_t width, const gw_code& code) {
  const int64_t whole = width / code.block, rest = width % code.block;
  at.scales += (whole + (rest ? 1 : 0)) * scale_bytes(code);
  at.codes += whole * (code.block / 8) * code.bits + (rest * code.bits + 7) / 8;
  return at;
}

}  // namespace

GW_API int gw_add_quantise(const gw_addends* addends, const gw_blocks* blocks, uint8_t* scales, uint8_t* codes,
                           uint64_t* noise, int keep) {
  Adding adding(*addends);
  bool finite = true;
  each_tile(*blocks, [&](int64_t width) {
    float* const tile = adding.next(width);
    finite &= kernels().quantise(tile, width, &blocks->code, &scales, &codes, noise, keep != 0, adding.ahead());
  });
  return finite && adding.finite();
}

GW_API int64_t gw_blocks_room(int64_t block) { return tile_of(block) * static_cast<int64_t>(sizeof(float)); }

GW_API void gw_decode_blocks(const gw_span* out, const gw_blocks* blocks, const gw_rows* rows, int64_t codes_at,
                             uint8_t* room) {
  Output output(out, reinterpret_cast<float*>(room));
  Cursor at{0, codes_at};
  each_tile(*blocks, [&](int64_t width) {
    output.next(width, [&](float* tile) {
      for (int64_t rank = 0; rank < rows->ranks; ++rank) {  // rank by rank: the same rounding on every replica
        const uint8_t* const row = rows->data + rank * rows->stride;
        const uint8_t *scales = row + at.scales, *codes = row + at.codes;
        kernels().dequantise(tile, width, &blocks->code, &scales, &codes, rank > 0);
      }
    });
    at = after(at, width, blocks->code);
  });
}
