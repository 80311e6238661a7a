// The state of a codebook and its life: initialisation, moving averages, dead codes, casts.
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

/// State of one or several codebooks (H of them, each K codes of D features). The members carry the
/// names under which state dicts, Python's included, know them.
///
/// Float state is float32 (float64 once the module was made double) whatever half-precision cast
/// the module sees: moving averages stall in half precision. A parameter `embed` follows the
/// module.
class TORCHVQ_API CodebookImpl : public KeptBuffers<CodebookImpl> {
 public:
  /// Counts, sums and exponents of the tokens of each code, see ops/code_statistics.h.
  using Statistics = std::tuple<torch::Tensor, torch::Tensor, torch::Tensor>;

  /// @param owns_bridge  false: the module of `vq_bridge` is registered by another codebook, whose
  /// stack this one belongs to.
  explicit CodebookImpl(VectorQuantizeOptions options, bool owns_bridge = true);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;
  void load(torch::serialize::InputArchive& archive) override;

  /// The codes that search, output and decoding use (H, K, D): `embed`, bridged or affinely mapped.
  torch::Tensor codes();

  /// Whether the codes are set: false only between construction with k-means and the first training
  /// step. Waits for the device where `initted` was not seen true since somebody wrote to it.
  bool initialised() const;

  /// What precedes the search: k-means on the first training tokens x (H, T, D), statistics of the
  /// affine map. With `training` false nothing changes; codes that k-means has not set yet are used
  /// as they are, with one warning.
  void prepare(const torch::Tensor& x, const std::optional<torch::Tensor>& mask, bool training,
               const distributed::Ranks& ranks = {});

  /// Moves the averages, then the codes, then replaces dead codes: all that a training step
  /// changes.
  ///
  /// @param x           tokens (H, T, D), unit vectors for the cosine metric.
  /// @param indices     (H, T), the code of each token.
  /// @param ema_update  whether the codes follow the averages. Dead codes are counted and replaced
  /// either way.
  /// @param accumulate  keep the statistics for the next step that does not accumulate.
  /// @param weight      (K,), (H, K) or scalar: multiplies 1 - decay.
  /// @param ranks       who learns together.
  /// @return            tokens of this step per code (H, K), of all ranks; none if nothing is
  /// learnt.
  std::optional<torch::Tensor> learn(const torch::Tensor& x, const torch::Tensor& indices,
                                     const std::optional<torch::Tensor>& mask, bool ema_update,
                                     bool accumulate = false,
                                     const std::optional<torch::Tensor>& weight = std::nullopt,
                                     const distributed::Ranks& ranks = {});

  /// Puts tokens x (H, T, D) in the place of codes that fell out of use, without learning from
  /// them.
  void expire_codes(const torch::Tensor& x, const distributed::Ranks& ranks = {});
  /// Sets the codes from the moving averages: the second half of a step with manual_ema_update.
  void update_ema();

  /// Sets the codes and the averages behind them, so that the next update keeps what it was given.
  void set_codes(const torch::Tensor& codes);
  /// Sets the codes of a codebook in use: averages follow, how often each is used stays as it was.
  void move_codes(const torch::Tensor& codes);

  /// Takes over the state of a codebook of the same options, statistics in waiting included.
  void copy_state(const CodebookImpl& other, const std::optional<torch::Device>& device);
  /// To be called once new values were copied into the state: what waited for the old ones is
  /// dropped. `missing` names state that there was no value for: it gets its defaults.
  void state_loaded(const std::vector<std::string>& missing = {});
  /// Whether state may be missing in a checkpoint: what this library adds to the reference's.
  static bool is_optional_state(const std::string& name);
  /// Whether state waits for later steps: a module that keeps nothing ignores it.
  static bool is_kept_state(const std::string& name);

  // Learning as functional/learn_codebooks.h takes it, for stacks whose levels learn together -----

  /// What training changes.
  functional::CodebookState state();
  /// Its options; the signature is this codebook's alone. `accumulate`: with sync_every above 1, to
  /// join the steps that are kept.
  functional::LearnCodebooksOptions learning(bool ema_update, const distributed::Ranks& ranks,
                                             bool accumulate = false) const;
  /// Whether statistics wait for other steps, so that accumulation is the operator's business.
  bool keeps_statistics() const { return options.sync_every() > 1; }
  /// Whether a training step needs statistics.
  bool learns(bool ema_update) const;
  /// Whether earlier steps have left statistics for this one.
  bool has_pending() const { return pending_.has_value(); }
  /// Forgets what the step before has replaced, in a new tensor, so that a copy of the module keeps
  /// its own.
  void begin_step();
  /// Mean and variance of the data and of the codes, with affine_param.
  std::vector<torch::Tensor> affine_state() const;
  /// Tokens in the space of the raw codes, in which averages are kept; no gradient.
  torch::Tensor raw_inputs(const torch::Tensor& x) const;
  /// The codes in the dtype of the averages, to be written; store_embed() completes the write.
  torch::Tensor wide_embed() const;
  void store_embed(const torch::Tensor& wide);

  // What ranks have in common ---------------------------------------------------------------------

  /// All that ranks have in common, but for statistics of the affine map, which may be a rank's
  /// own.
  std::vector<torch::Tensor> replicated_state() const;
  /// Tells this module from every other, see distributed/replicas.h.
  int64_t handle() const { return handle_; }
  /// Shape and options in words, for errors.
  std::string signature() const;

  bool has_dead_code_replacement() const;
  /// Whether the codes are a parameter, which an optimizer may move.
  bool learns_by_gradient() const;
  std::string metric() const;
  int64_t num_codebooks() const;
  /// The parameters, those of a bridge that another codebook registers included.
  std::vector<torch::Tensor> learned_parameters() const;
  /// Modules that belong to this one but are registered by another, by the name they have here.
  std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>> borrowed_modules() const;

  VectorQuantizeOptions options;
  torch::Tensor initted;       ///< (), bool
  torch::Tensor cluster_size;  ///< (H, K): moving average of the tokens per step and code
  torch::Tensor embed_avg;     ///< (H, K, D): moving average of the sum of the tokens of each code
  torch::Tensor embed;         ///< (H, K, D): the codes; a parameter when they learn by gradient
  torch::Tensor cooldown;      ///< (H, K), int64: steps until a code may be replaced; 0 by itself
  torch::Tensor rng;           ///< (2,), int64: seed and step of the counter-based generator
  torch::Tensor batch_mean, batch_variance, codebook_mean,
      codebook_variance;                                           ///< (H, 1, D), with affine_param
  torch::Tensor batch_mean_needs_init, batch_variance_needs_init;  ///< (), bool, with affine_param
  torch::Tensor codebook_mean_needs_init,
      codebook_variance_needs_init;  ///< (), bool, with affine_param
  torch::Tensor kept_steps, kept_counts, kept_sums, kept_exponents,
      kept_candidates;     ///< with sync_every above 1, see functional/learn_codebooks.h
  torch::Tensor replaced;  ///< (H,), int64: codes that the last training forward replaced, for
                           ///< stats(); undefined for none; not part of the state

 private:
  void register_embed(const torch::Tensor& initial);
  void register_affine(int64_t dim);
  void register_kept(int64_t dim);
  void forget_kept();
  void initialise(const torch::Tensor& x, const std::optional<torch::Tensor>& mask,
                  const distributed::Ranks& ranks);
  void update_affine(const torch::Tensor& x, const std::optional<torch::Tensor>& mask,
                     const distributed::Ranks& ranks);
  void restore_default(const std::string& name);

  bool owns_bridge_;
  int64_t handle_;
  std::optional<Statistics> pending_;
  bool warned_uninitialised_ = false;
  std::shared_ptr<detail::SeenFlag> seen_initted_;
};

TORCH_MODULE(Codebook);

}  // namespace torchvq
