// The state of a module under the names of Python's state_dict(), so that a checkpoint of either
// language, for example in a safetensors file (io/safetensors.h), serves both.
#pragma once

#include <map>
#include <string>

#include <torch/nn/module.h>

#include <torchvq/export.h>

namespace torchvq {

/// Parameters, buffers, and the state of the in-place optimizers of its quantizers.
///
/// @return  tensors that share their memory with the module's, without gradient. Names are those of
///          Python: "_codebook.embed", "in_place_codebook_optimizer.0.exp_avg".
TORCHVQ_API std::map<std::string, torch::Tensor> state_dict(const torch::nn::Module& module);

/// Copies values into the module; each is cast to the dtype and device of the module's tensor.
///
/// State that vector-quantize-pytorch does not have ("rng", flags of the affine
/// statistics) may be missing, and then gets its default. An in-place optimizer whose state is
/// missing begins anew, but for Adagrad, whose state is there from its construction on.
///
/// Throws   c10::ValueError for names that are missing or unknown and for shapes that differ; the
///          module is then unchanged.
/// Example  SafetensorsFile file("vq.safetensors");
///          std::map<std::string, torch::Tensor> state;
///          for (const auto& [name, entry] : file.entries()) state[name] = file.tensor(name);
///          torchvq::load_state_dict(*quantizer, state);
TORCHVQ_API void load_state_dict(torch::nn::Module& module,
                                 const std::map<std::string, torch::Tensor>& state);

}  // namespace torchvq
