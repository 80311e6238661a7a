// The arguments of synced_code_statistics for its kernels.
#pragma once

#include <optional>
#include <string_view>
#include <tuple>
#include <vector>

#include <ATen/core/Tensor.h>

#include <torchvq/distributed/synced_code_statistics.h>

#include "distributed/claim.h"
#include "distributed/group.h"
#include "distributed/statistics_buffer.h"

namespace torchvq::distributed {

using StatisticsLists =
    std::tuple<std::vector<at::Tensor>, std::vector<at::Tensor>, std::vector<at::Tensor>>;

using SyncedCodeStatisticsSignature = StatisticsLists(
    at::TensorList x, at::TensorList indices, at::TensorList exponents, at::TensorList mask,
    at::TensorList state, const std::optional<at::Tensor>& rng, std::string_view signature,
    std::string_view reduction, std::string_view group_name, std::string_view label);

/// Throws unless `reduction` is "exact" or "float".
void check_reduction(const char* op, std::string_view reduction);

void check_synced_code_statistics(at::TensorList x, at::TensorList indices,
                                  at::TensorList exponents, at::TensorList mask,
                                  at::TensorList state, const std::optional<at::Tensor>& rng,
                                  std::string_view reduction);

/// Uninitialised outputs, for Meta kernels.
StatisticsLists empty_statistics(at::TensorList x, at::TensorList indices,
                                 at::TensorList exponents);

/// Arguments that have been checked.
struct StatisticsArguments {
  at::TensorList x;
  at::TensorList indices;
  at::TensorList exponents;
  at::TensorList mask;
  at::TensorList state;
  at::Tensor rng;
  std::string_view signature;
  std::string_view reduction;
};

/// The statistics of all ranks while they are being sent: the constructor sends, receive() waits.
/// The referenced arguments and the group must outlive this object.
class StatisticsInFlight {
 public:
  StatisticsInFlight(const Group& group, StatisticsArguments arguments, at::Tensor extra);
  /// The result of reduce_statistics(). If tokens outgrew an exponent on some rank, two collectives
  /// follow.
  StatisticsLists receive(at::Tensor& extra);

 private:
  [[nodiscard]] bool exact() const { return arguments_.reduction == "exact"; }
  void receive_integers();

  const Group& group_;
  StatisticsArguments arguments_;
  at::Tensor extra_;
  SyncedStatistics own_;
  Claim claim_;
  at::Tensor hash_, news_;
  StatisticsMessage message_;
};

/// The statistics of all ranks. `extra` (n,), int64, is sent with them and becomes (W, n).
StatisticsLists reduce_statistics(const Group& group, const StatisticsArguments& arguments,
                                  at::Tensor& extra);

/// The largest exponents of all ranks: one all-reduce.
std::vector<at::Tensor> largest_exponents(const Group& group, const SyncedStatistics& own);

}  // namespace torchvq::distributed
