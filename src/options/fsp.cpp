#include <torchvq/options/fsp.h>

#include "detail/scalar_levels.h"
#include "functional/vector_norm.h"
#include "options/expect.h"
#include "options/tables.h"

namespace torchvq {
namespace {

constexpr detail::ExpectOption expect_fsp{"FSP"};

bool is_distribution(const std::string& name) {
  return name == "tanh" || name == "sigmoid" || name == "normal" || name == "laplace" ||
         name == "cauchy";
}

}  // namespace

void FSPOptions::validate() const {
  detail::check_scalar_levels("FSP", levels(), 2);
  expect_fsp(dim().value_or(1) >= 1, "dim", "at least 1", dim());
  expect_fsp(quantize_rate() >= 0 && quantize_rate() <= 1, "quantize_rate", "in [0, 1]",
             quantize_rate());
  expect_fsp(is_distribution(act_name()), "act_name", "tanh, sigmoid, normal, laplace or cauchy",
             act_name());
  functional::vector_norm(vector_norm());
}

template <>
const detail::OptionTable<FSPOptions>& detail::option_table() {
  static const OptionTable<FSPOptions> table{.owner = "FSP",
                                             .defaults = FSPOptions({}),
                                             .required = {"levels"},
                                             .rows = {
                                                 TORCHVQ_OPTION(levels),
                                                 TORCHVQ_OPTION(dim),
                                                 TORCHVQ_OPTION(channel_first),
                                                 TORCHVQ_OPTION(projection_has_bias),
                                                 TORCHVQ_OPTION(act_name),
                                                 TORCHVQ_OPTION(quantize_rate),
                                                 TORCHVQ_OPTION(need_inv_act),
                                                 TORCHVQ_OPTION(vector_norm),
                                                 TORCHVQ_OPTION(sync_statistics),
                                                 TORCHVQ_OPTION(process_group),
                                                 TORCHVQ_COMPAT_OPTION,
                                             }};
  return table;
}

}  // namespace torchvq
