// What was found to a payload of entries.
#pragma once
#include "selection.h"

// Where not all of a value is sent, the rest goes to x.
void pack_found(const gw_layout& layout, const Found& found, uint8_t* payload, float* x);
