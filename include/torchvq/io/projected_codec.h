// Codebooks with linear maps around them in a file, which `python -m torchvq.convert` writes for
// tokenizers with such maps.
#pragma once

#include <torchvq/export.h>
#include <torchvq/fit/projected_codec.h>
#include <torchvq/io/output_file.h>
#include <torchvq/io/safetensors.h>

#include <string>

namespace torchvq::io {

/// Writes a safetensors file. Its tensors, float32, of stack s and level q:
///
///   stacks.<s>.project_in.weight (C, D), .bias (C,)     stacks.<s>.project_out.weight (D, C), .bias (D,)
///   stacks.<s>.layers.<q>.project_in.weight (d, C), .bias (d,)         and project_out (C, d), (C,)
///   stacks.<s>.layers.<q>._codebook.embed (1, K, d)
///
/// A missing map is the identity. Metadata: format_version, class
/// (ProjectedCodec), dim, metric, torchvq_version.
///
/// Throws       as fit::check_projected_codec(); c10::ValueError for numbers that are not finite in
///              float32.
TORCHVQ_API void save_projected_codec(OutputFile& file, const fit::ProjectedCodec& codec);
TORCHVQ_API void save_projected_codec(const std::string& path, const fit::ProjectedCodec& codec);

/// Reads such a file, or one of save_codec_stack() with one group, which is a stack without maps.
///
/// Throws       IoError when the file cannot be read; c10::ValueError when it is not such a file,
///              or damaged.
TORCHVQ_API fit::ProjectedCodec load_projected_codec(const std::string& path);

/// Whether the metadata of a file names this format.
TORCHVQ_API bool holds_projected_codec(const SafetensorsFile& file);

}  // namespace torchvq::io
