// A fitted codebook in a file, which `torchvq fit` writes and Python's VectorQuantize loads.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchvq/export.h>
#include <torchvq/io/output_file.h>
#include <torchvq/io/safetensors.h>

#include <cstdint>
#include <string>
#include <vector>

namespace torchvq::io {

/// The state of a VectorQuantize without projections and with one head.
struct Codec {
  at::Tensor codebook;  // (K, D), float32
  at::Tensor
      cluster_size;  // (K,), float32: vectors per code, the weight that later updates start from
  at::Tensor embed_avg;              // (K, D), float32: the sum of those vectors
  std::string metric = "euclidean";  // or "cosine"
};

/// The codec of a codebook (K, D) and the number of vectors of each code (K,): the averages are as
/// if each code were the mean of its vectors so far, so that training can continue.
///
/// Throws   c10::ValueError for other shapes.
TORCHVQ_API Codec make_codec(const at::Tensor& codebook, const at::Tensor& counts,
                             const std::string& metric);

/// Writes a safetensors file whose tensors are the state of VectorQuantize:
/// `_codebook.initted` (), bool; `_codebook.cluster_size` (1, K), `_codebook.embed_avg` (1, K, D)
/// and `_codebook.embed` (1, K, D), float32. The metadata has format_version, class, codebook_size,
/// dim, metric and torchvq_version.
///
/// Throws   c10::ValueError for other shapes, a codebook or averages that are not finite, and a
///          negative cluster_size.
/// Python   vq = torchvq.VectorQuantize(dim=D, codebook_size=K, use_cosine_sim=metric == "cosine")
///          vq.load_state_dict(safetensors.torch.load_file("codec.safetensors"))
TORCHVQ_API void save_codec(OutputFile& file, const Codec& codec);
TORCHVQ_API void save_codec(const std::string& path, const Codec& codec);

/// Reads such a file, or the state of a VectorQuantize saved from Python (any floating-point dtype;
/// the keys may have a prefix, as in the state of a larger model, if the file holds one quantizer).
///
/// @param metric  "euclidean" or "cosine" for files that do not name it (those from Python). Empty:
///                the metric that the file names, or euclidean.
/// Throws       IoError when the file cannot be read; c10::ValueError when it holds no codebook or
///              several, projections, several heads, a codebook that is not finite, or another
///              metric than requested.
TORCHVQ_API Codec load_codec(const std::string& path, const std::string& metric = "");

/// The state of a VectorQuantize (one group, one level), a ResidualVQ (one group) or a
/// GroupedResidualVQ, without projections and with one head.
struct CodecStack {
  std::vector<std::vector<Codec>> groups;  // groups[g][q]: level q of group g; D = dim / groups
};

/// Writes a stack. One group of one level is the file of save_codec(path, Codec); otherwise the
/// keys are those of the Python module: `layers.<q>._codebook.*` for one group,
/// `rvqs.<g>.layers.<q>._codebook.*` for several. The metadata also has class,
/// codebook_size (of all levels, separated by commas if they differ), dim, num_quantizers unless it is
/// one codebook, and groups if there are several.
///
/// Python   rvq = torchvq.ResidualVQ(dim=D, num_quantizers=Q, codebook_size=K)
///          rvq = torchvq.GroupedResidualVQ(dim=D, groups=G, num_quantizers=Q, codebook_size=K)
///          rvq.load_state_dict(safetensors.torch.load_file("codec.safetensors"))
///
/// Throws   as save_codec(); c10::ValueError unless all groups have the same number of levels, all
///          codebooks the same dim, and the metric is euclidean (or cosine, for one group of one
///          level only).
TORCHVQ_API void save_codec_stack(OutputFile& file, const CodecStack& stack);
TORCHVQ_API void save_codec_stack(const std::string& path, const CodecStack& stack);

/// Reads such a file, or the state of one of these modules saved from Python, as load_codec() does.
TORCHVQ_API CodecStack load_codec_stack(const std::string& path, const std::string& metric = "");

/// Whether the file holds the state of a quantizer, judged by the names of its tensors.
TORCHVQ_API bool holds_codec(const SafetensorsFile& file);

}  // namespace torchvq::io
