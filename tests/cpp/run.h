// The runs of `torchvq_run` for Python tests: modules on tensors from a file, and file formats.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <c10/core/Device.h>

namespace torchvq::testing {

/// The arguments "name=text".
using Words = std::map<std::string, std::string>;

/// Where modules run: the argument "device=cuda", else the CPU.
c10::Device& run_device();

// Each runs a kind of module on the safetensors file `from`; its source describes the tensors.
void run_evo_lfq(const std::string& from, const std::string& to, const Words& words);
void run_fsq(const std::string& from, const std::string& to, const Words& words);
void run_hierarchical_vq(const std::string& from, const std::string& to, const Words& words);
void run_lfq(const std::string& from, const std::string& to, const Words& words);
void run_residual_vq(const std::string& from, const std::string& to, const Words& words);
void run_scalar(const std::string& from, const std::string& to, const Words& words);
void run_sim_vq(const std::string& from, const std::string& to, const Words& words);
void run_vector_quantize(const std::string& from, const std::string& to, const Words& words);

/// Copies the first file to the second, the third to the fourth, and so on.
void convert_files(const std::vector<std::string>& paths);

}  // namespace torchvq::testing
