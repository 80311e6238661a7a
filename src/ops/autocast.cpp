// Autocast stops at this library's door, for every device type.
//
// Distances, statistics and losses are float32 whatever surrounds them (docs/design/numerics.md).
// Operators here have kernels that call ATen; without this shield autocast would reach those calls
// and turn a matrix product of distances into bfloat16. Every operator gets one boxed kernel that
// switches autocast off and calls the operator again.
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

namespace {

void without_autocast(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/,
                      torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard guard(c10::autocast_dispatch_keyset);
  op.callBoxed(stack);
}

// Every operator of the library that computes; a test compares this list with the registered
// schemas.
constexpr const char* kOperators[] = {
    "advance_rng_",
    "affine_codes",
    "affine_inputs",
    "all_reduce_differentiable",
    "all_reduce_statistics",
    "attach_moments",
    "average_gradients",
    "binary_entropy",
    "binary_kl_loss",
    "binary_log_prob",
    "binary_one_hot",
    "binary_sample",
    "bits_to_indices",
    "broadcast_state_",
    "candidate_commitment_loss",
    "code_exponents",
    "code_statistics",
    "codebook_diversity_loss",
    "codebook_diversity_totals",
    "commitment_cross_entropy",
    "commitment_loss",
    "cosine_linear",
    "count_codes_",
    "cross_bits",
    "dead_code_candidates",
    "decode_scalars",
    "decode_sums",
    "directional_reparam",
    "distribution_cdf",
    "distribution_quantile",
    "ema_finish_",
    "ema_update_",
    "evaluate",
    "fittest_first",
    "gather_moments",
    "grow_population",
    "gumbel_straight_through",
    "handshake_",
    "has_tokens",
    "implicit_diversity_loss",
    "indices_to_bits",
    "initialise_codebook_",
    "kmeans",
    "latent_commitment_loss",
    "latent_decode",
    "latent_quantization_loss",
    "latent_quantize",
    "latent_quantize_features",
    "lookup_codes",
    "lookup_free_loss",
    "merge_statistics",
    "moment_loss",
    "mutate_bits",
    "nearest_code",
    "on_sphere",
    "orthogonal_loss",
    "quantize",
    "quantize_scalars",
    "replace_dead_codes_",
    "replace_with_candidates_",
    "replica_hashes",
    "residual_beam_search",
    "residual_decode",
    "residual_encode",
    "residual_scalar_quantize",
    "rotate_features",
    "rotation_trick",
    "sample_codes",
    "sample_token_mask",
    "scalar_act_levels",
    "scalar_centroids",
    "scalar_code_indices",
    "scalar_decode",
    "scalar_indices",
    "scalar_level_indices",
    "scalar_noise",
    "scalar_perturb",
    "scalar_quantize",
    "select_parents",
    "sign_decode",
    "sign_entropy",
    "sign_entropy_totals",
    "sign_quantize",
    "snapshot",
    "soft_clamp",
    "state_hash",
    "straight_through",
    "sync_update_v",
    "synced_code_statistics",
    "synced_kmeans",
    "synced_replace_dead_codes_",
    "synced_usage",
    "token_moments",
    "unit_vectors",
    "update_affine_",
    "vqp_diversity_loss",
    "vqp_masked_commitment",
    "vqp_rotation_trick",
    "weighted_loss",
    "wide_codes",
};

void shield(torch::Library& m) {
  for (const auto* name : kOperators) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&without_autocast>());
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, AutocastCPU, m) { shield(m); }
TORCH_LIBRARY_IMPL(torchvq, AutocastCUDA, m) { shield(m); }
TORCH_LIBRARY_IMPL(torchvq, AutocastXPU, m) { shield(m); }
TORCH_LIBRARY_IMPL(torchvq, AutocastMPS, m) { shield(m); }
TORCH_LIBRARY_IMPL(torchvq, AutocastHPU, m) { shield(m); }
TORCH_LIBRARY_IMPL(torchvq, AutocastIPU, m) { shield(m); }
TORCH_LIBRARY_IMPL(torchvq, AutocastXLA, m) { shield(m); }
TORCH_LIBRARY_IMPL(torchvq, AutocastPrivateUse1, m) { shield(m); }
