// Which ranks learn together in a training forward of a module.
#pragma once

#include <string>

#include <torchvq/distributed/sync.h>
#include <torchvq/export.h>

namespace torchvq::distributed {

/// The ranks that learn together in one forward: the name of a group, and the quantizer's name in
/// errors.
struct Ranks : SyncOptions {
  /// How the statistics of ranks are added up, see SyncedStatisticsOptions.
  std::string reduction = "exact";

  /// Whether there is no group. A group of one rank is a group, but never communicates.
  [[nodiscard]] bool alone() const { return group_name.empty(); }
};

/// Sets the group of all modules of this process whose options name none (process_group()). This
/// includes modules built before, because modules look the group up at each training step.
///
/// @param group_name  a name registered with c10d::register_process_group(); "", the default: none.
///                    Thread-safe.
TORCHVQ_API void set_default_group(std::string group_name);

/// The last argument of set_default_group().
TORCHVQ_API std::string default_group();

}  // namespace torchvq::distributed
