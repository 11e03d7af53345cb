// What scales and codes stand for, written to a tile or added to it.
#pragma once
#include "codes.h"
#include "kernels.h"
#include "signs.h"

namespace {

template <class Value> GW_INLINE void put_or_add(float* out, int64_t n, bool add, Value value) {
  if (add) {
    each_vector(n, [=](int64_t i, auto lanes)
                       GW_LAMBDA { lanes.put(out + i, lanes.template get<Floats>(out + i) + value(i, lanes)); });
  } else {
    each_vector(n, [=](int64_t i, auto lanes) GW_LAMBDA { lanes.put(out + i, value(i, lanes)); });
  }
}

GW_INLINE float read_step(const gw_code& code, const uint8_t** scales) {
  if (has_short_scales(code)) {
    const float step = from_bfloat16(read<uint16_t>(*scales));
    *scales += 2;
    return step;
  }
  const float most = read<float>(*scales);
  *scales += 4;
  return most / static_cast<float>(code.top);
}

// As they were packed, they are unpacked many blocks at a time.
GW_INLINE void decode_numbers(float* out, int64_t n, const gw_code& code, const uint8_t** scales, const uint8_t** codes,
                              bool add) {
  int8_t room[CHUNK];
  const int8_t* numbers = nullptr;
  Floats step{};
  for (int64_t i = 0, block_end = 0, chunk = 0, chunk_end = 0; i < n;) {
    if (i == block_end) {
      step = splat(read_step(code, scales));
      block_end += code.block;
    }
    if (i == chunk_end) {
      const int64_t width = n - i < CHUNK ? n - i : CHUNK;
      numbers = code.bits == 8 ? reinterpret_cast<const int8_t*>(*codes) : room;
      if (code.bits != 8) unpack_codes(*codes, width, code.bits, room);
      *codes += (width * code.bits + 7) / 8;
      chunk = i, chunk_end = i + width;
    }
    const int64_t end = block_end < chunk_end ? block_end : chunk_end;
    const int8_t* const these = numbers + (i - chunk);
    put_or_add(out + i, end - i, add, [=](int64_t j, auto lanes) GW_LAMBDA {
      return floats(widen(lanes.template get<Bytes>(these + j))) * step;
    });
    i = end;
  }
}

GW_INLINE void decode_signs(float* out, int64_t n, const gw_code& code, const uint8_t** scales, const uint8_t** codes,
                            bool add) {
  const float first = read<float>(*scales);
  const float second = code.kind == GW_ONE_BIT ? read<float>(*scales + 4) : first;
  const Floats minus = splat(code.kind == GW_ONE_BIT ? first : -first), plus = splat(second);
  const uint8_t* const from = *codes;
  put_or_add(out, n, add,
             [=](int64_t i, auto lanes) GW_LAMBDA { return choose(word_at(from, i, lanes), plus, minus); });
  *scales += code.kind == GW_ONE_BIT ? 8 : 4;
  *codes += (n + 7) / 8;
}

void dequantise_blocks(float* out, int64_t n, const gw_code* code, const uint8_t** scales, const uint8_t** codes,
                       bool add) {
  if (code->bits != 1) return decode_numbers(out, n, *code, scales, codes, add);
  for (int64_t i = 0; i < n; i += code->block) {
    const int64_t width = n - i < code->block ? n - i : code->block;
    decode_signs(out + i, width, *code, scales, codes, add);
  }
}

}  // namespace
