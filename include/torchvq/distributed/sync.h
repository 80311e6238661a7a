// What every function of torchvq/distributed has in common: where it communicates, and how much it
// did.
#pragma once

#include <cstdint>
#include <string>

#include <torchvq/export.h>

namespace torchvq::distributed {

/// Who takes part, and what errors call the caller.
struct SyncOptions {
  /// Name of a process group as c10d registers it (`group.group_name` in Python), resolved at each
  /// call. Empty: alone, which gives the result of a group of one and never communicates. Default:
  /// "".
  std::string group_name;
  /// The quantizer's name in errors, for example "encoder.vq (VectorQuantize)". Default:
  /// "quantizer".
  std::string label = "quantizer";
};

/// False where the environment says TORCHVQ_SYNC=0: then every group counts as alone. Read at each
/// call.
TORCHVQ_API bool enabled();

/// What this process sent since reset_traffic(), over all groups.
struct Traffic {
  int64_t all_reduces = 0;
  int64_t all_gathers = 0;
  int64_t broadcasts = 0;
  /// Bytes of this rank's own tensors; what they cost on the wire is up to the backend.
  int64_t bytes = 0;
};

/// Thread-safe. Groups of one send nothing and are not counted.
TORCHVQ_API Traffic traffic();
TORCHVQ_API void reset_traffic();

/// Identifies one module to handshake_(): random, so that it stays unique when a module is copied
/// to another process.
TORCHVQ_API int64_t new_handle();

}  // namespace torchvq::distributed
