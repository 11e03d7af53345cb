// The two payloads of k of n entries: `Entries`, 16-bit indices and float32 values, and `Compact`, about 10 bits each.
#pragma once
#include "selection.h"

// Writes what was found; where not all of a value is sent, the rest goes to x.
void pack_found(const gw_layout& layout, const Found& found, uint8_t* payload, float* x);
