// On devices without float64, an operator that needs it reports this under its own name.
//
// Distances, statistics and random numbers have the same bits everywhere because they are float64
// or integers (docs/design/any-device.md). Apple's GPUs have no float64.
#include <string>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

namespace {

constexpr const char* kNeedFloat64[] = {
    "binary_sample",
    "code_exponents",
    "code_statistics",
    "dead_code_candidates",
    "decode_sums",
    "ema_finish_",
    "ema_update_",
    "ema_update_tokens_",
    "extend_paths",
    "keep_statistics_",
    "kmeans",
    "linear_nearest_code",
    "nearest_code",
    "projected_residual_encode",
    "quantize_and_commit",
    "random_numbers",
    "replace_dead_codes_",
    "replace_with_candidates_",
    "resample_scale",
    "residual_beam_search",
    "residual_encode",
    "sample_codes",
    "sampled_beam_search",
    "scalar_act_levels",
    "scalar_code_indices",
    "scalar_decode",
    "scalar_noise",
    "synced_code_statistics",
    "synced_kmeans",
    "synced_replace_dead_codes_",
    "synced_usage",
    "unit_vectors",
};

void refuse(const c10::OperatorHandle& op, torch::jit::Stack* /*stack*/) {
  const auto& name = op.schema().name();
  TORCH_CHECK_TYPE(false, name.substr(name.find("::") + 2),
                   ": expected tensors to be on a device with float64, but got mps; move them to "
                   "the CPU");
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, MPS, m) {
  for (const auto* name : kNeedFloat64) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&refuse>());
  }
}
