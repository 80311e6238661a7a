#include <torchvq/modules/evo_lfq.h>

#include <limits>
#include <ostream>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>

#include <torchvq/functional/evolution.h>
#include <torchvq/ops/advance_rng_.h>

#include "detail/checks.h"
#include "modules/copy_tensors.h"
#include "modules/projection.h"
#include "modules/random_state.h"

namespace torchvq {

namespace F = functional;

namespace {

/// Puts a module in evaluation mode, and later restores the mode of each submodule.
class Evaluating {
 public:
  explicit Evaluating(torch::nn::Module& module) {
    for (auto& one : module.modules()) before_.emplace_back(one, one->is_training());
    module.eval();
  }
  ~Evaluating() {
    // Parents come first, so that their children restore their own mode afterwards.
    for (auto& [module, training] : before_) module->train(training);
  }
  Evaluating(const Evaluating&) = delete;
  Evaluating& operator=(const Evaluating&) = delete;

 private:
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> before_;
};

}  // namespace

EvoLFQImpl::EvoLFQImpl(torch::nn::AnyModule encoder_, torch::nn::AnyModule decoder_,
                       EvoLFQOptions options_)
    : options(std::move(options_)),
      encoder(std::move(encoder_)),
      decoder(std::move(decoder_)),
      built_from_(options) {
  reset();
}

void EvoLFQImpl::reset() {
  options.validate();
  TORCH_CHECK_VALUE(!encoder.is_empty(), "EvoLFQ: expected encoder to be a module, but got none");
  TORCH_CHECK_VALUE(!decoder.is_empty(), "EvoLFQ: expected decoder to be a module, but got none");
  register_module("encoder", encoder.ptr());
  register_module("decoder", decoder.ptr());
  lfq = register_module("lfq", LFQ(options.lfq()));
  rng = register_buffer("rng", detail::fresh_rng());
}

void EvoLFQImpl::pretty_print(std::ostream& stream) const {
  stream << "torchvq::EvoLFQ(dim=" << lfq->dim() << ", codebook_size=" << lfq->codebook_size()
         << ", num_codebooks=" << lfq->options.num_codebooks()
         << ", pop_size=" << options.pop_size() << ")";
}

std::shared_ptr<torch::nn::Module> EvoLFQImpl::clone(
    const std::optional<torch::Device>& device) const {
  auto own = built_from_;
  auto& activation = own.lfq().straight_through_activation();
  activation = activation.clone(device);
  auto copy =
      std::make_shared<EvoLFQImpl>(encoder.clone(device), decoder.clone(device), std::move(own));
  detail::copy_tensors(*this, *copy, device);
  copy->lfq->copy_options(*lfq, device);
  detail::copy_options(options, built_from_, copy->options, device,
                       [](auto& all) -> auto& { return all.lfq().straight_through_activation(); });
  return copy;
}

// The autoencoder ---------------------------------------------------------------------------------

EvoLFQOutput EvoLFQImpl::forward(const torch::Tensor& x, double inv_temperature,
                                 const std::optional<torch::Tensor>& mask) {
  auto found = lfq(detail::apply_network(encoder, x), inv_temperature, mask);
  return {detail::apply_network(decoder, found.quantized), found.indices, found.entropy_aux_loss,
          found.loss_breakdown};
}

torch::Tensor EvoLFQImpl::encode(const torch::Tensor& x, bool return_signs) {
  const at::NoGradGuard no_grad;
  const Evaluating evaluating(*this);
  auto indices = lfq(detail::apply_network(encoder, x)).indices;
  if (!lfq->keeps_codebook_axis()) indices = indices.unsqueeze(-1);
  return F::indices_to_bits(indices, lfq->codebook_dim(), return_signs);
}

torch::Tensor EvoLFQImpl::decode_bits(const torch::Tensor& bits) {
  const at::NoGradGuard no_grad;
  const auto features = lfq->options.num_codebooks() * lfq->codebook_dim();
  TORCH_CHECK_VALUE(bits.dim() >= 1 && bits.size(-1) == features, "EvoLFQ: expected bits to be of ",
                    features, " features, but got shape ", bits.sizes());
  auto indices = F::bits_to_indices(bits, lfq->codebook_dim());
  if (!lfq->keeps_codebook_axis()) indices = indices.squeeze(-1);
  const Evaluating evaluating(*this);
  return detail::apply_network(decoder, lfq->indices_to_codes(indices));
}

// Populations -------------------------------------------------------------------------------------

torch::Tensor EvoLFQImpl::drawn(torch::Tensor result) {
  ops::advance_rng_(rng);
  return result;
}

namespace {

int64_t population_size(std::optional<int64_t> asked, const EvoLFQOptions& options) {
  const auto size = asked.value_or(options.pop_size());
  TORCH_CHECK_VALUE(size >= 1, "EvoLFQ: expected pop_size to be at least 1, but got ", size);
  return size;
}

}  // namespace

torch::Tensor EvoLFQImpl::init_random_population(std::optional<int64_t> pop_size,
                                                 const std::optional<std::vector<int64_t>>& shape,
                                                 bool is_sign) {
  std::vector<int64_t> size{population_size(pop_size, options)};
  if (shape) {
    size.insert(size.end(), shape->begin(), shape->end());
  } else {
    size.push_back(lfq->options.num_codebooks() * lfq->codebook_dim());
  }
  return drawn(F::random_bits(rng, size, is_sign));
}

torch::Tensor EvoLFQImpl::init_population_from_data(const torch::Tensor& x,
                                                    std::optional<int64_t> pop_size,
                                                    std::optional<double> mutation_rate,
                                                    bool is_sign) {
  const auto size = population_size(pop_size, options);
  return drawn(F::grow_population(encode(x, is_sign), rng, size,
                                  mutation_rate.value_or(options.mutation_rate()), is_sign));
}

torch::Tensor EvoLFQImpl::mutate(const torch::Tensor& population,
                                 std::optional<double> mutation_rate, bool is_sign) {
  return drawn(
      F::mutate_bits(population, rng, mutation_rate.value_or(options.mutation_rate()), is_sign));
}

torch::Tensor EvoLFQImpl::tournament_selection(const torch::Tensor& population,
                                               const torch::Tensor& fitnesses,
                                               std::optional<int64_t> tournament_size) {
  return drawn(F::select_parents(population, fitnesses, rng,
                                 tournament_size.value_or(options.tournament_size())));
}

torch::Tensor EvoLFQImpl::uniform_crossover(const torch::Tensor& parent1,
                                            const torch::Tensor& parent2) {
  return drawn(F::cross_bits(parent1, parent2, rng));
}

// Evolution ---------------------------------------------------------------------------------------

torch::Tensor EvoLFQImpl::fitness_of(const torch::Tensor& bits, const Fitness& fitness_fn,
                                     std::optional<int64_t> batch_size) {
  const Evaluating evaluating(*this);
  std::vector<torch::Tensor> parts;
  for (const auto& part : bits.split(batch_size.value_or(bits.size(0)))) {
    parts.push_back(decode_bits(part));
  }
  auto fitnesses = fitness_fn(at::cat(parts), bits);
  TORCH_CHECK_VALUE(fitnesses.sizes() == bits.sizes().slice(0, 1),
                    "EvoLFQ: expected fitness_fn to return fitnesses of shape ",
                    bits.sizes().slice(0, 1), ", but got shape ", fitnesses.sizes());
  return fitnesses;
}

namespace {

/// Checked first: a rejected call asks for no fitness, and leaves the generator unchanged.
void check_step(const torch::Tensor& pop_bits, const EvoLFQStepOptions& call,
                const EvoLFQOptions& options) {
  const auto rate = call.mutation_rate().value_or(options.mutation_rate());
  const auto size = call.tournament_size().value_or(options.tournament_size());
  const auto batch = call.batch_size().value_or(1);
  TORCH_CHECK_VALUE(rate >= 0 && rate <= 1,
                    "EvoLFQ: expected mutation_rate to be in [0, 1], but got ", rate);
  TORCH_CHECK_VALUE(size >= 1, "EvoLFQ: expected tournament_size to be at least 1, but got ", size);
  TORCH_CHECK_VALUE(batch >= 1, "EvoLFQ: expected batch_size to be at least 1, but got ", batch);
  TORCH_CHECK_TYPE(pop_bits.scalar_type() != at::kBool,
                   "EvoLFQ: expected pop_bits to be numbers, but got Bool");
}

}  // namespace

std::pair<torch::Tensor, torch::Tensor> EvoLFQImpl::step(const torch::Tensor& pop_bits,
                                                         const Fitness& fitness_fn,
                                                         const EvoLFQStepOptions& call) {
  const at::NoGradGuard no_grad;
  detail::check_defined("EvoLFQ", "pop_bits", pop_bits);
  TORCH_CHECK_TYPE(fitness_fn, "EvoLFQ: expected fitness_fn to be a function, but got none");
  const auto count = pop_bits.size(0);
  const auto elite = call.elitism_count().value_or(options.elitism_count());
  TORCH_CHECK_VALUE(elite >= 0 && elite < count, "EvoLFQ: expected elitism_count to be in [0, ",
                    count, "), but got ", elite);
  check_step(pop_bits, call, options);
  auto fitnesses = fitness_of(pop_bits, fitness_fn, call.batch_size());
  const auto order = F::fittest_first(fitnesses).narrow(0, 0, elite).to(pop_bits.device());
  const auto survivors = pop_bits.index_select(0, order);
  const auto first = tournament_selection(pop_bits, fitnesses, call.tournament_size());
  const auto second = tournament_selection(pop_bits, fitnesses, call.tournament_size());
  const auto children =
      mutate(uniform_crossover(first, second), call.mutation_rate(), call.is_sign());
  return {at::cat({survivors, children.slice(0, elite)}), fitnesses};
}

EvoLFQGeneration EvoLFQImpl::evolve(const Fitness& fitness_fn, const EvoLFQEvolveOptions& call,
                                    const std::function<bool(const EvoLFQGeneration&)>& each) {
  TORCH_CHECK_VALUE(call.pop_bits() || call.shape(),
                    "EvoLFQ: expected pop_bits or shape to be given, but got neither");
  const auto generations = call.generations().value_or(options.generations());
  TORCH_CHECK_VALUE(generations >= 0, "EvoLFQ: expected generations to be 0 or more, but got ",
                    generations);
  EvoLFQGeneration found;
  found.pop_bits = call.pop_bits() ? *call.pop_bits()
                                   : init_random_population(call.pop_size(), call.shape(),
                                                            call.step().is_sign());
  // Copies: the caller may write to the population.
  found.best_gene = found.pop_bits[0].clone();
  found.best_fitness = -std::numeric_limits<double>::infinity();
  for (int64_t generation = 0; generation < generations; ++generation) {
    const auto [following, fitnesses] = step(found.pop_bits, fitness_fn, call.step());
    const auto fittest = F::fittest_first(fitnesses)[0].item<int64_t>();
    // A NaN fitness never replaces the best.
    const auto fitness = fitnesses[fittest].item<double>();
    if (fitness > found.best_fitness) {
      found.best_gene = found.pop_bits[fittest].clone();
      found.best_fitness = fitness;
    }
    found.pop_bits = following;
    if (call.return_best_decoded())
      found.best_decoded = decode_bits(found.best_gene.unsqueeze(0))[0];
    if (each && !each(found)) break;
  }
  return found;
}

}  // namespace torchvq
