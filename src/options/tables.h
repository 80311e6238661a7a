// The tables of all classes.
#pragma once

#include <torchvq/options/binary_mapper.h>
#include <torchvq/options/evo_lfq.h>
#include <torchvq/options/fsp.h>
#include <torchvq/options/fsq.h>
#include <torchvq/options/hierarchical_vq.h>
#include <torchvq/options/latent_quantize.h>
#include <torchvq/options/lfq.h>
#include <torchvq/options/random_projection_quantizer.h>
#include <torchvq/options/residual_fsq.h>
#include <torchvq/options/residual_lfq.h>
#include <torchvq/options/residual_vq.h>
#include <torchvq/options/sim_vq.h>
#include <torchvq/options/vector_quantize.h>

#include "options/table.h"
#include "options/text_of_structs.h"

namespace torchvq::detail {

template <>
const OptionTable<BinaryMapperOptions>& option_table();
template <>
const OptionTable<EvoLFQOptions>& option_table();
template <>
const OptionTable<FSPOptions>& option_table();
template <>
const OptionTable<FSQOptions>& option_table();
template <>
const OptionTable<HierarchicalVQOptions>& option_table();
template <>
const OptionTable<LatentQuantizeOptions>& option_table();
template <>
const OptionTable<LFQOptions>& option_table();
template <>
const OptionTable<ResidualFSQOptions>& option_table();
template <>
const OptionTable<GroupedResidualFSQOptions>& option_table();
template <>
const OptionTable<ResidualLFQOptions>& option_table();
template <>
const OptionTable<GroupedResidualLFQOptions>& option_table();
template <>
const OptionTable<ResidualVQOptions>& option_table();
template <>
const OptionTable<GroupedResidualVQOptions>& option_table();
template <>
const OptionTable<RandomProjectionQuantizerOptions>& option_table();
template <>
const OptionTable<SimVQOptions>& option_table();
template <>
const OptionTable<ResidualSimVQOptions>& option_table();
template <>
const OptionTable<VectorQuantizeOptions>& option_table();

}  // namespace torchvq::detail
