// Arguments of synced_code_statistics as its kernels get them.
#pragma once

#include <optional>
#include <string_view>
#include <tuple>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torchvq::distributed {

using StatisticsLists =
    std::tuple<std::vector<at::Tensor>, std::vector<at::Tensor>, std::vector<at::Tensor>>;

using SyncedCodeStatisticsSignature = StatisticsLists(
    at::TensorList x, at::TensorList indices, at::TensorList exponents, at::TensorList mask,
    at::IntArrayRef codebooks, at::TensorList state, const std::optional<at::Tensor>& rng,
    std::string_view signature, std::string_view reduction, std::string_view group_name,
    std::string_view label);

void check_synced_code_statistics(at::TensorList x, at::TensorList indices,
                                  at::TensorList exponents, at::TensorList mask,
                                  at::IntArrayRef codebooks, at::TensorList state,
                                  const std::optional<at::Tensor>& rng, std::string_view reduction);

}  // namespace torchvq::distributed
