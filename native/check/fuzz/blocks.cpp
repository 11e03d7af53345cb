#include "input.h"

namespace {

gw_code any_code(Input& input) {
  static const int bits[] = {2, 3, 4, 8};
  const int32_t kind = static_cast<int32_t>(input.number(0, 4)), block = 8 * static_cast<int32_t>(input.number(1, 700));
  if (kind == GW_SHARED_EXPONENT) return {kind, 8, 127, block};
  if (kind >= GW_SIGN) return {kind, 1, 1, block};
  const int32_t width = bits[input.number(0, 3)];
  return {kind, width, (1 << (width - 1)) - 1, block};
}

int64_t up(int64_t count, int64_t unit) { return (count + unit - 1) / unit; }

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  any_level(input);
  const gw_code code = any_code(input);
  const int64_t lengths[] = {input.number(0, 9000), input.number(0, 9000)}, ranks = input.number(1, 3);
  const gw_blocks blocks{lengths, 2, code};
  const bool is_short = code.kind == GW_NEAREST || code.kind == GW_SHARED_EXPONENT;
  const int64_t scale = is_short ? 2 : code.kind == GW_ONE_BIT ? 8 : 4;
  const int64_t codes_at = scale * (up(lengths[0], code.block) + up(lengths[1], code.block));
  const int64_t nbytes = codes_at + up(lengths[0] * code.bits, 8) + up(lengths[1] * code.bits, 8);

  const std::vector<uint8_t> payloads = input.bytes(nbytes * ranks);
  const int64_t n = lengths[0] + lengths[1], cut = input.number(0, n);
  std::vector<float> first(static_cast<size_t>(cut)), second(static_cast<size_t>(n - cut));
  const gw_span out[] = {{first.data(), cut}, {second.data(), n - cut}};
  const gw_rows rows{payloads.data(), nbytes, ranks};
  std::vector<uint8_t> room(static_cast<size_t>(gw_blocks_room(code.block)));
  gw_decode_blocks(out, &blocks, &rows, codes_at, room.data());
  return 0;
}
