#include <torchvq/options/binary_mapper.h>

#include <limits>

#include "options/expect.h"
#include "options/tables.h"

namespace torchvq {
namespace {

constexpr detail::ExpectOption expect_binary_mapper{"BinaryMapper"};

}  // namespace

void BinaryMapperOptions::validate() const {
  expect_binary_mapper(bits() >= 1 && bits() <= 30, "bits", "in [1, 30]", bits());
  // Infinity turns the loss off.
  expect_binary_mapper(kl_loss_threshold() > -std::numeric_limits<double>::infinity(),
                       "kl_loss_threshold", "a number above -inf", kl_loss_threshold());
}

template <>
const detail::OptionTable<BinaryMapperOptions>& detail::option_table() {
  static const OptionTable<BinaryMapperOptions> table{.owner = "BinaryMapper",
                                                      .defaults = BinaryMapperOptions(),
                                                      .required = {},
                                                      .rows = {
                                                          TORCHVQ_OPTION(bits),
                                                          TORCHVQ_OPTION(kl_loss_threshold),
                                                          TORCHVQ_OPTION(deterministic_on_eval),
                                                          TORCHVQ_COMPAT_OPTION,
                                                      }};
  return table;
}

}  // namespace torchvq
