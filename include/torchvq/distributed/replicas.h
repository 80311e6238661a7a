// Replicated state: makes it equal before the first step, and compares it at any time.
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include <torchvq/distributed/sync.h>
#include <torchvq/export.h>

namespace torchvq::distributed {

/// Hash of the values of tensors, bit for bit, in their order.
///
/// @return  int64 scalar on the device of the first tensor (CPU if there is none); the same for any
///          device and layout.
TORCHVQ_API at::Tensor state_hash(at::TensorList state);

/// Hashes of each tensor on each rank: one fixed-size all-gather.
///
/// @return  (W, T), int64. A column with two different numbers is a tensor on which the ranks
///          differ.
TORCHVQ_API at::Tensor replica_hashes(at::TensorList state, const SyncOptions& options = {});

/// Writes rank 0's values into the tensors of all ranks: one broadcast. Sizes must agree.
TORCHVQ_API void broadcast_state_(at::TensorList state, const SyncOptions& options = {});

/// Options of handshake_().
struct HandshakeOptions : SyncOptions {
  /// The module, from new_handle().
  int64_t handle = 0;
  /// Options that must be the same on all ranks, in readable form; errors quote them.
  std::string signature = {};
};

/// Precedes the first synchronised step of a module: checks that the ranks have the same options,
/// and makes their state equal.
///
/// The first call for a handle, a group, and a signature (the given one, shapes and dtypes of
/// `state`) exchanges 1024 bytes per rank; a module may alternate between signatures. If they
/// differ, every rank throws a c10::ValueError that quotes all of them: collectives of unequal size
/// would abort the process (Gloo) or hang (NCCL). If only the state differs (ranks seeded differently), all take the state
/// of rank 0, including the seed, in one broadcast, with a warning. Later calls return at once.
///
/// If one rank has a new module while the others continue with theirs, it waits in another
/// collective than they do; all get a c10::DistBackendError after the timeout of the group.
///
/// @param state  all replicated tensors, including rng; changed in place.
TORCHVQ_API void handshake_(at::TensorList state, const HandshakeOptions& options);

}  // namespace torchvq::distributed
