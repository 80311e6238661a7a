// A quantizer without a codebook in a file, which `torchvq fit --method fsq` and `lfq` write.
#pragma once

#include <torchvq/export.h>
#include <torchvq/fit/scalar_codec.h>
#include <torchvq/io/output_file.h>
#include <torchvq/io/safetensors.h>

#include <string>

namespace torchvq::io {

/// Writes a safetensors file whose tensors are the state of FSQ or LFQ: `project_in.weight`,
/// `project_in.bias`, `project_out.weight`, `project_out.bias` (none of them for an fsq without
/// projections), for lfq also `mask`; metadata: format_version, class (FSQ or LFQ), levels (fsq,
/// with commas), codebook_size, num_codebooks, dim, torchvq_version.
///
/// Python   fsq = torchvq.FSQ(levels, dim=D, num_codebooks=C)
///          lfq = torchvq.LFQ(dim=D, codebook_size=K, num_codebooks=C, has_projections=True)
///          fsq.load_state_dict(safetensors.torch.load_file("codec.safetensors"))
/// Throws   as fit::check_scalar_codec(); c10::ValueError for maps that are not finite in float32.
TORCHVQ_API void save_scalar_codec(OutputFile& file, const fit::ScalarCodec& codec);

/// Reads such a file.
///
/// Throws       IoError when the file cannot be read; c10::ValueError when it is not such a file,
///              or damaged.
TORCHVQ_API fit::ScalarCodec load_scalar_codec(const std::string& path);

/// Whether the metadata of a file names this format.
TORCHVQ_API bool holds_scalar_codec(const SafetensorsFile& file);

}  // namespace torchvq::io
