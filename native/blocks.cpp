// Block quantisation: gradients to a payload in one pass, and payloads to their sum.
#include "addends.h"

namespace {

// Whole blocks that lie in the first-level cache together.
int64_t tile_of(const gw_code& code) {
  const int64_t blocks = TILE / code.block;
  return (blocks ? blocks : 1) * code.block;
}

// Calls body(width) for each tile; tiles begin anew with each segment, as blocks do.
template <class Body> void each_tile(const gw_blocks& blocks, Body body) {
  const int64_t tile = tile_of(blocks.code);
  for (int64_t segment = 0; segment < blocks.count; ++segment) {
    for (int64_t rest = blocks.lengths[segment]; rest;) {
      const int64_t width = rest < tile ? rest : tile;
      body(width);
      rest -= width;
    }
  }
}

// The next part of the output; tiles never lie in two, for parts end where segments do.
class Output {
 public:
  explicit Output(const gw_span* spans) : span_(spans) {}

  float* next(int64_t width) {
    while (inside_ == span_->length) ++span_, inside_ = 0;
    float* const here = span_->data + inside_;
    inside_ += width;
    return here;
  }

 private:
  const gw_span* span_;
  int64_t inside_ = 0;
};

int64_t scale_bytes(const gw_code& code) { return code.kind == GW_NEAREST ? 2 : code.kind == GW_ONE_BIT ? 8 : 4; }

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

GW_API void gw_decode_blocks(const gw_span* out, const gw_blocks* blocks, const gw_rows* rows, int64_t codes_at) {
  Output output(out);
  Cursor at{0, codes_at};
  each_tile(*blocks, [&](int64_t width) {
    float* const tile = output.next(width);
    for (int64_t rank = 0; rank < rows->ranks; ++rank) {  // rank by rank: the same rounding on every replica
      const uint8_t* const row = rows->data + rank * rows->stride;
      const uint8_t *scales = row + at.scales, *codes = row + at.codes;
      kernels().dequantise(tile, width, &blocks->code, &scales, &codes, rank > 0);
    }
    at = after(at, width, blocks->code);
  });
}
