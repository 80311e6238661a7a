// The state of a codebook, and what changes it: initialisation, moving averages, dead codes, casts.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <torch/nn/pimpl.h>

#include <torchvq/distributed/ranks.h>
#include <torchvq/export.h>
#include <torchvq/functional/learn_codebooks.h>
#include <torchvq/modules/kept_buffers.h>
#include <torchvq/options/vector_quantize.h>

namespace torchvq {

namespace detail {
class SeenFlag;
}

/// State of one or several codebooks (H of them, each K codes of D features). The members have the
/// names of their entries in state dicts, including those of Python.
///
/// Floating-point state stays float32 (float64 once the module was cast to double) under casts to
/// half precision, in which moving averages would stall. A parameter `embed` follows the casts of
/// the module.
class TORCHVQ_API CodebookImpl : public KeptBuffers<CodebookImpl> {
 public:
  /// Counts, sums and exponents of the tokens of each code, see ops/code_statistics.h.
  using Statistics = std::tuple<torch::Tensor, torch::Tensor, torch::Tensor>;

  /// @param owns_bridge  false: another codebook of the same stack registers the module of
  ///                     `vq_bridge`.
  explicit CodebookImpl(VectorQuantizeOptions options, bool owns_bridge = true);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;
  void load(torch::serialize::InputArchive& archive) override;

  /// The codes (H, K, D) for search, output and decoding: `embed`, after the bridge or affine map.
  torch::Tensor codes();
  /// `embed`. Throws c10::ValueError unless it is (H, K, D), H being that of the options: it may have
  /// been given another shape. Evaluation takes any number of codes.
  const torch::Tensor& checked_embed() const;

  /// Whether the codes are set: false only between construction with k-means and the first training
  /// step. Waits for the device unless `initted` was read as true since its last change.
  bool initialised() const;

  /// Prepares the search: k-means on the first training tokens x (H, T, D), and the statistics of
  /// the affine map. With `training` false nothing changes; codes that k-means has not set yet are
  /// used unchanged, with one warning by TORCH_WARN.
  void prepare(const torch::Tensor& x, const std::optional<torch::Tensor>& mask, bool training,
               const distributed::Ranks& ranks = {});

  /// Updates the averages, then the codes, then replaces dead codes: all changes of a training
  /// step.
  ///
  /// @param x           tokens (H, T, D), unit vectors for the cosine metric.
  /// @param indices     (H, T), the code of each token.
  /// @param ema_update  whether the codes follow the averages. Dead codes are counted and replaced
  ///                    in any case.
  /// @param accumulate  keep the statistics for the next step that does not accumulate.
  /// @param weight      (K,), (H, K) or scalar: multiplies 1 - decay.
  /// @param ranks       the ranks that learn together.
  /// @return            number of tokens of this step per code (H, K), over all ranks; none if the
  ///                    step does not learn.
  std::optional<torch::Tensor> learn(const torch::Tensor& x, const torch::Tensor& indices,
                                     const std::optional<torch::Tensor>& mask, bool ema_update,
                                     bool accumulate = false,
                                     const std::optional<torch::Tensor>& weight = std::nullopt,
                                     const distributed::Ranks& ranks = {});

  /// Replaces dead codes by tokens x (H, T, D), without learning from these tokens.
  void expire_codes(const torch::Tensor& x, const distributed::Ranks& ranks = {});
  /// Sets the codes from the moving averages: the second half of a step with manual_ema_update.
  void update_ema();

  /// Sets the codes and their averages, so that the next update keeps these codes.
  void set_codes(const torch::Tensor& codes);
  /// Sets the codes of a codebook in use, and their averages; cluster_size stays unchanged.
  void move_codes(const torch::Tensor& codes);

  /// Copies the options and the state of a codebook that was constructed with the same options,
  /// including accumulated statistics. Throws c10::ValueError for one of other tensors.
  void copy_state(const CodebookImpl& other, const std::optional<torch::Device>& device);
  /// To be called after new values were copied into the state: drops statistics accumulated for the
  /// old values. State in `missing` had no value and gets its default.
  void state_loaded(const std::vector<std::string>& missing = {});
  /// Whether state may be missing in a checkpoint: the state that the reference does not have.
  static bool is_optional_state(const std::string& name);
  /// Whether state is accumulated for later steps (kept_*): a module with sync_every 1 ignores it.
  static bool is_kept_state(const std::string& name);

  // Arguments of functional/learn_codebooks.h, for stacks whose levels learn together -----------

  /// The tensors that training changes.
  ///
  /// @param learns  whether a step may learn, which needs as many averages as codes.
  functional::CodebookState state(bool learns = true);
  /// Zeros (H, K) for the tokens of each code in a step.
  torch::Tensor fresh_counts() const;
  /// Options of the update; the signature covers only this codebook. `accumulate`: with sync_every
  /// above 1, add this step to the accumulated ones.
  functional::LearnCodebooksOptions learning(bool ema_update, const distributed::Ranks& ranks,
                                             bool accumulate = false) const;
  /// Whether statistics are accumulated over steps, which the operator does.
  ///
  /// Throws c10::ValueError if sync_every was set above 1 after construction, which makes the state.
  bool keeps_statistics() const;
  /// Whether a training step computes statistics.
  bool learns(bool ema_update) const;
  /// Whether a step computes its statistics apart from the update: they wait for a later step, or
  /// those of earlier steps join them.
  bool learns_apart(bool accumulate) const {
    return !keeps_statistics() && (accumulate || has_pending());
  }
  /// Whether earlier steps have left statistics for the next one.
  bool has_pending() const { return pending_.has_value(); }
  const std::optional<Statistics>& pending() const { return pending_; }
  /// To be called after the state was restored: as before the step, `pending` waits.
  void after_undo(std::optional<Statistics> pending) { pending_ = std::move(pending); }
  /// Clears the count of replaced codes, in a new tensor, so that copies of the module keep theirs.
  void reset_replaced();
  /// Mean and variance of the data and of the codes, with affine_param.
  std::vector<torch::Tensor> affine_state() const;
  /// Tokens in the space of the raw codes, in which the averages are computed; no gradient.
  torch::Tensor raw_inputs(const torch::Tensor& x) const;
  /// The codes in the dtype of the averages, for writing; store_embed() completes the write.
  torch::Tensor wide_embed() const;
  void store_embed(const torch::Tensor& wide);

  // State shared by ranks -------------------------------------------------------------------------

  /// Updates the statistics of the affine map from the tokens (H, T, D) of a step; over the ranks
  /// with sync_affine_param.
  void update_affine(const torch::Tensor& x, const std::optional<torch::Tensor>& mask,
                     const distributed::Ranks& ranks);
  /// All state that ranks share; with sync_affine_param also the statistics of the affine map.
  std::vector<torch::Tensor> replicated_state() const;
  /// Identifies this module, see distributed/replicas.h.
  int64_t handle() const { return handle_; }
  /// Shape and options in words, for errors.
  std::string signature() const;

  bool has_dead_code_replacement() const;
  /// Whether the codes are a parameter, which an optimizer may change.
  bool learns_by_gradient() const;
  std::string metric() const;
  int64_t num_codebooks() const;
  /// The parameters, including those of a bridge that another codebook registers.
  std::vector<torch::Tensor> learned_parameters() const;
  /// Modules that belong to this one but are registered by another, by the name they have here.
  std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>> borrowed_modules() const;

  VectorQuantizeOptions options;
  torch::Tensor initted;       ///< (), bool
  torch::Tensor cluster_size;  ///< (H, K): moving average of the tokens per step and code
  torch::Tensor embed_avg;     ///< (H, K, D): moving average of the sum of the tokens of each code
  torch::Tensor embed;         ///< (H, K, D): the codes; a parameter if they learn by gradient
  torch::Tensor rng;           ///< (2,), int64: seed and step of the counter-based generator
  torch::Tensor batch_mean, batch_variance, codebook_mean,
      codebook_variance;                                           ///< (H, 1, D), with affine_param
  torch::Tensor batch_mean_needs_init, batch_variance_needs_init;  ///< (), bool, with affine_param
  torch::Tensor codebook_mean_needs_init,
      codebook_variance_needs_init;  ///< (), bool, with affine_param
  torch::Tensor kept_steps, kept_counts, kept_sums, kept_exponents,
      kept_candidates;     ///< with sync_every above 1, see functional/learn_codebooks.h
  torch::Tensor replaced;  ///< (H,), int64: codes that the last training forward replaced, for
                           ///< stats(); zeros before one; not part of the state

 private:
  /// Throws c10::ValueError unless there are as many codes as moving averages, which training needs.
  void check_averages() const;
  void check_embed(bool fits) const;
  void register_embed(const torch::Tensor& initial);
  void register_affine(int64_t dim);
  void register_kept(int64_t dim);
  void forget_kept();
  void initialise(const torch::Tensor& x, const std::optional<torch::Tensor>& mask,
                  const distributed::Ranks& ranks);
  void restore_default(const std::string& name);

  VectorQuantizeOptions built_from_;  ///< the options at construction, from which clone() builds
  bool owns_bridge_;
  int64_t handle_;
  std::optional<Statistics> pending_;
  bool warned_uninitialised_ = false;
  std::shared_ptr<detail::SeenFlag> seen_initted_;
};

TORCH_MODULE(Codebook);

}  // namespace torchvq
