// Which ranks learn together in a training forward of a module.
#pragma once

#include <string>

#include <torchvq/distributed/sync.h>
#include <torchvq/export.h>

namespace torchvq::distributed {

/// Who learns together in one forward: a group by name, and what errors call the quantizer.
struct Ranks : SyncOptions {
  /// How their statistics are added up, see SyncedStatisticsOptions.
  std::string reduction = "exact";

  /// Whether this process learns by itself. A group of one is no exception, and never communicates.
  [[nodiscard]] bool alone() const { return group_name.empty(); }
};

/// Names the group of the modules whose options name none (process_group()): every module of this
/// process, those built before included, because modules ask at each training step.
///
/// @param group_name  as registered with c10d::register_process_group(); "": none, the default.
/// Thread-safe.
TORCHVQ_API void set_default_group(std::string group_name);

/// What set_default_group() was last given.
TORCHVQ_API std::string default_group();

}  // namespace torchvq::distributed
