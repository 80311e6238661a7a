// Names of a quantizer's tensors in a state dict: the level and group that they belong to.
#pragma once

#include <torchvq/io/safetensors.h>

#include <string>
#include <vector>

namespace torchvq::io {

/// The codes of a level, after its key.
inline const std::string kEmbed = "_codebook.embed";

/// The prefix of `_codebook.embed` and related tensors for each level of each group, including the
/// prefix within a larger model; a VectorQuantize has one entry with one level.
using CodecKeys = std::vector<std::vector<std::string>>;

/// The keys of a stack that is written: "" for one level of one group, otherwise "layers.<q>."
/// or "rvqs.<g>.layers.<q>.".
CodecKeys codec_keys(size_t groups, size_t levels);

/// The keys of the quantizer in a file.
///
/// Throws c10::ValueError naming `path` if there is none, if there are several quantizers,
/// or if a level is missing.
CodecKeys find_codec_keys(const std::string& path, const SafetensorsFile& file);

/// The common prefix of all these keys: that of the quantizer within a model.
std::string codec_prefix(const CodecKeys& keys);

}  // namespace torchvq::io
