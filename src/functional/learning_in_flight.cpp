// torch.classes.torchvq.LearningInFlight: LearningInFlight for Python. A class and not an operator, because between its
// two halves it owns communication in progress, which only its owner may finish or discard.
#include "functional/learning_in_flight.h"

#include <string>
#include <utility>

#include <torch/custom_class.h>

#include "detail/without_autocast.h"
#include "functional/operator_options.h"
#include "functional/step_tokens.h"

namespace torchvq::functional {
namespace {

using Tensors = std::vector<at::Tensor>;

class Holder : public torch::CustomClassHolder {
 public:
  explicit Holder(std::unique_ptr<LearningInFlight> step) : step_(std::move(step)) {}

  Tensors finish() {
    TORCH_CHECK(step_, "LearningInFlight: expected finish to be called once, but got another call");
    const detail::WithoutAutocast guard;
    // Released first, so that the message is received only once, even if finish() throws.
    const auto step = std::move(step_);
    return step->finish();
  }

 private:
  std::unique_ptr<LearningInFlight> step_;
};

c10::intrusive_ptr<Holder> start(const Tensors& state, const Tensors& rng, const Tensors& x,
                                 const Tensors& indices, const Tensors& mask,
                                 const std::optional<at::Tensor>& weight, double decay, double eps,
                                 const std::string& metric, bool ema_update, bool manual_ema_update,
                                 double threshold, double threshold_fraction,
                                 double reset_cluster_size, bool vqp_compat,
                                 const std::string& reduction, const std::string& signature,
                                 const std::string& group_name, const std::string& label) {
  const detail::WithoutAutocast guard;
  auto options = codebook_options(eps, metric, ranks_named(group_name, label, reduction));
  averages(options, decay, ema_update, manual_ema_update, false, signature);
  dead_codes(options, threshold, threshold_fraction, reset_cluster_size, vqp_compat);
  TORCH_CHECK_VALUE(
      !options.ranks().alone() && options.learns(),
      "LearningInFlight: expected a step of several ranks that learns, but got group_name \"",
      group_name, "\" and a step that ", options.learns() ? "learns" : "learns nothing");
  auto states = states_of("LearningInFlight", state, rng);
  auto tokens = step_tokens("LearningInFlight", x, indices, mask, states.size());
  return c10::make_intrusive<Holder>(
      std::make_unique<LearningInFlight>(std::move(states), tokens, std::move(options), weight));
}

}  // namespace
}  // namespace torchvq::functional

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  using torchvq::functional::Holder;
  m.class_<Holder>("LearningInFlight")
      .def(torch::init(&torchvq::functional::start), "",
           {torch::arg("state"), torch::arg("rng"), torch::arg("x"), torch::arg("indices"),
            torch::arg("mask"), torch::arg("weight"), torch::arg("decay"), torch::arg("eps"),
            torch::arg("metric"), torch::arg("ema_update"), torch::arg("manual_ema_update"),
            torch::arg("threshold"), torch::arg("threshold_fraction"),
            torch::arg("reset_cluster_size"), torch::arg("vqp_compat"), torch::arg("reduction"),
            torch::arg("signature"), torch::arg("group_name"), torch::arg("label")})
      .def("finish", [](const c10::intrusive_ptr<Holder>& self) { return self->finish(); });
}
