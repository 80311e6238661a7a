// Common to all functions of torchvq/distributed: the group they communicate in, and counters of
// messages.
#pragma once

#include <cstdint>
#include <string>

#include <torchvq/export.h>

namespace torchvq::distributed {

/// The group that takes part, and the caller's name in errors.
struct SyncOptions {
  /// Name of a process group as c10d registers it (`group.group_name` in Python), resolved at each
  /// call. Empty: no group, which gives the result of a group of one and never communicates.
  /// Default: "".
  std::string group_name;
  /// The quantizer's name in errors, for example "encoder.vq (VectorQuantize)". Default:
  /// "quantizer".
  std::string label = "quantizer";
};

/// False if TORCHVQ_SYNC=0 is in the environment: every group then counts as empty. Read at each
/// call.
TORCHVQ_API bool enabled();

/// The messages of this process since reset_traffic(), over all groups.
struct Traffic {
  int64_t all_reduces = 0;
  int64_t all_gathers = 0;
  int64_t broadcasts = 0;
  /// Bytes of this rank's tensors; the bytes on the wire depend on the backend.
  int64_t bytes = 0;
};

/// Thread-safe. Groups of one send nothing and are not counted.
TORCHVQ_API Traffic traffic();
TORCHVQ_API void reset_traffic();

/// Identifies one module to handshake_(): random, so that it stays unique when a module is copied
/// to another process.
TORCHVQ_API int64_t new_handle();

}  // namespace torchvq::distributed
