// Names of a quantizer's tensors in a state: which level of which group they belong to.
#pragma once

#include <torchvq/io/safetensors.h>

#include <string>
#include <vector>

namespace torchvq::io {

/// The codes of a level, behind its key.
inline const std::string kEmbed = "_codebook.embed";

/// The prefix of `_codebook.embed` and its neighbours for each level of each group, including that
/// of a larger model's state; one entry, one level for a VectorQuantize.
using CodecKeys = std::vector<std::vector<std::string>>;

/// The keys of a stack that is written: "" for one level of one group, else "layers.<q>." or
/// "rvqs.<g>.layers.<q>.".
CodecKeys codec_keys(size_t groups, size_t levels);

/// The keys of the one quantizer in a file.
///
/// Throws c10::ValueError naming `path` where there is none, where there are several quantizers,
/// or where a level is missing.
CodecKeys find_codec_keys(const std::string& path, const SafetensorsFile& file);

/// The common beginning of all these keys: the prefix of the model around the quantizer.
std::string codec_prefix(const CodecKeys& keys);

}  // namespace torchvq::io
