// The state of a module by the names that Python's state_dict() gives it, so that a checkpoint
// written by either language, in a safetensors file for instance (io/safetensors.h), serves both.
#pragma once

#include <map>
#include <string>

#include <torch/nn/module.h>

#include <torchvq/export.h>

namespace torchvq {

/// Parameters, buffers, and what the in-place optimizers of its quantizers have accumulated.
///
/// @return  tensors that share their memory with the module's, without gradient. Names are those of
///          Python: "_codebook.embed", "in_place_codebook_optimizer.0.exp_avg".
TORCHVQ_API std::map<std::string, torch::Tensor> state_dict(const torch::nn::Module& module);

/// Copies values into the module; each is cast to the dtype and device of the module's own.
///
/// What this library adds to the state of vector-quantize-pytorch ("rng", "cooldown", flags of the
/// affine statistics, the in-place optimizer's state) may be missing and then gets its default.
///
/// Throws   c10::ValueError for names that are missing or unknown and for shapes that differ;
///          the module is then as it was.
/// Example  SafetensorsFile file("vq.safetensors");
///          std::map<std::string, torch::Tensor> state;
///          for (const auto& [name, entry] : file.entries()) state[name] = file.tensor(name);
///          torchvq::load_state_dict(*quantizer, state);
TORCHVQ_API void load_state_dict(torch::nn::Module& module,
                                 const std::map<std::string, torch::Tensor>& state);

}  // namespace torchvq
