#include "../../entries.h"

#include "sparse.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return decode_all(Input(data, size), GW_ENTRIES, [](const gw_layout& layout) { return Entries{layout}.bytes(); });
}
