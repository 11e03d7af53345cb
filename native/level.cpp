// One level's kernels: compiled once per level, each time with that level's instructions and as another GW_TABLE.
// Nothing with external linkage may come from here but the table.
#include "add.h"
#include "codes.h"
#include "dequantise.h"
#include "kernels.h"
#include "pick.h"
#include "quantise.h"
#include "round.h"
#include "signs.h"
#include "thin.h"

const Kernels GW_TABLE = {
    add_gradient, pick_large,   take_large,   count_large,     group_maxima, quantise_blocks,      dequantise_blocks,
    pack_signs,   unpack_signs, project_rows, project_columns, thin_product, round_stochastically,
};
