#include <torchvq/distributed/replicas.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "detail/no_gradient.h"
#include "detail/op_handle.h"
#include "distributed/agreement.h"
#include "distributed/bytes.h"
#include "distributed/fingerprint.h"
#include "distributed/group.h"
#include "ops/capture.h"

namespace torchvq::distributed {
namespace {

at::Device device_of(at::TensorList state) {
  return state.empty() ? at::Device(at::kCPU) : state[0].device();
}

/// One broadcast of all tensors as bytes.
void broadcast(const Group& group, at::TensorList state) {
  if (group.alone() || state.empty()) return;
  std::vector<at::Tensor> bytes;
  for (const auto& tensor : state) bytes.push_back(as_bytes(tensor.detach()));
  const auto packed = at::cat(bytes);
  group.broadcast_(packed, "the state of rank 0");
  int64_t begin = 0;
  for (size_t i = 0; i < state.size(); ++i) {
    const auto size = bytes[i].numel();
    // A copy, because a block may not be aligned for its dtype.
    const auto values =
        packed.narrow(0, begin, size).clone().view(state[i].scalar_type()).view(state[i].sizes());
    state[i].detach().copy_(values);
    begin += size;
  }
}

/// The handshakes of this process: module, group and signatures. Ranks that run as
/// threads have different handles.
class Register {
 public:
  /// Whether a module has already done this handshake. All ranks see the same values, so all agree.
  bool contains(int64_t handle, const Group& group, uint64_t signature) {
    const std::scoped_lock lock(mutex_);
    auto& entry = entries_[handle];
    if (!group.is(entry.group)) entry = {group.known(), {}};
    return entry.signatures.contains(signature);
  }

  /// After contains(), with the same handle and group.
  void add(int64_t handle, uint64_t signature) {
    const std::scoped_lock lock(mutex_);
    entries_[handle].signatures.insert(signature);
  }

 private:
  struct Entry {
    KnownGroup group;               ///< of the last call
    std::set<uint64_t> signatures;  ///< of this group's handshakes; a module may alternate
  };

  std::mutex mutex_;
  std::map<int64_t, Entry> entries_;
};

Register& handshakes() {
  // Never destroyed: the last reference to a group in Python must not go when the interpreter has.
  static auto& instance = *new Register;
  return instance;
}

/// Stacks have many tensors of few kinds, so these are counted: a note has little room.
std::string full_signature(at::TensorList state, std::string_view signature) {
  std::vector<std::pair<at::Tensor, int64_t>>
      kinds;  // the first tensor of a kind, and their number
  for (const auto& tensor : state) {
    const auto same = [&](const auto& kind) {
      return kind.first.scalar_type() == tensor.scalar_type() &&
             kind.first.sizes() == tensor.sizes();
    };
    const auto found = std::find_if(kinds.begin(), kinds.end(), same);
    if (found == kinds.end()) {
      kinds.emplace_back(tensor, 1);
    } else {
      ++found->second;
    }
  }
  std::ostringstream text;
  text << signature << (signature.empty() ? "" : ", ") << "state";
  for (const auto& [tensor, count] : kinds) {
    text << " ";
    if (count > 1) text << count << " ";
    text << tensor.scalar_type() << tensor.sizes();
  }
  return text.str();
}

void check_signatures(const Group& group, const std::vector<Note>& notes) {
  const auto same = [&](const Note& note) { return note.text == notes[0].text; };
  if (std::all_of(notes.begin(), notes.end(), same)) return;
  TORCH_CHECK_VALUE(false, group.subject(),
                    ": expected all ranks to have the same quantizer, but got on ",
                    list_differences(notes),
                    "\nLikely reasons: options differ between ranks, or ranks call their "
                    "quantizers in another order.");
}

at::Tensor step_of(at::TensorList state) {
  // By convention, a (2,) int64 tensor is rng; without one, errors do not name the step.
  for (const auto& tensor : state) {
    if (tensor.scalar_type() == at::kLong && tensor.dim() == 1 && tensor.size(0) == 2)
      return tensor;
  }
  return {};
}

// Kernels -----------------------------------------------------------------------------------------

at::Tensor state_hash_any(at::TensorList state) { return fingerprint(state, device_of(state)); }

at::Tensor state_hash_meta(at::TensorList state) {
  return at::empty({}, at::TensorOptions(at::kLong).device(state.empty() ? at::kCPU : at::kMeta));
}

at::Tensor replica_hashes_any(at::TensorList state, std::string_view group_name,
                              std::string_view label) {
  const Group group(group_name, {std::string(label), step_of(state)});
  std::vector<at::Tensor> hashes;
  for (const auto& tensor : state) hashes.push_back(fingerprint(tensor).to(device_of(state)));
  if (hashes.empty()) return at::zeros({group.size(), 0}, at::kLong);
  return group.all_gather(at::stack(hashes), "hashes of its state");
}

at::Tensor replica_hashes_meta(at::TensorList state, std::string_view group_name,
                               std::string_view label) {
  // Resolves the group for its size; does not communicate.
  const Group group(group_name, {std::string(label), {}});
  return at::empty({group.size(), static_cast<int64_t>(state.size())},
                   at::TensorOptions(at::kLong).device(state.empty() ? at::kCPU : at::kMeta));
}

void broadcast_state_any_(at::TensorList state, std::string_view group_name,
                          std::string_view label) {
  broadcast(Group(group_name, {std::string(label), step_of(state)}), state);
}

void call_handshake_(at::TensorList state, int64_t handle, std::string_view signature,
                     std::string_view group_name, std::string_view label) {
  static auto op =
      detail::op_handle<void(at::TensorList, int64_t, std::string_view, std::string_view,
                             std::string_view)>("torchvq::handshake_");
  op.call(state, handle, signature, group_name, label);
}

void handshake_any_(at::TensorList state, int64_t handle, std::string_view signature_,
                    std::string_view group_name, std::string_view label) {
  const Group group(group_name, {std::string(label), step_of(state)});
  if (group.alone()) return;
  const auto signature = full_signature(state, signature_);
  const uint64_t agreed = fingerprint(signature);
  if (handshakes().contains(handle, group, agreed)) return;

  const auto hash = fingerprint(state, device_of(state)).item<int64_t>();
  const auto notes = exchange_notes(group, {hash, signature}, device_of(state));
  check_signatures(group, notes);
  const auto same = [&](const Note& note) { return note.number == notes[0].number; };
  if (!std::all_of(notes.begin(), notes.end(), same)) {
    TORCH_WARN(label,
               ": ranks start with different states (they were seeded differently, or a checkpoint "
               "was loaded on "
               "some of them only); all take the state and the seed of rank 0");
    broadcast(group, state);
    for (const auto& tensor : state) detail::mark_written(tensor);
  }
  handshakes().add(handle, agreed);
}

/// Unlike run_without_gradient, it leaves it to handshake_any_ to mark what it writes: nearly all handshakes only look
/// up that there was one, and the backward of an earlier step may still need the state.
void handshake_autograd_(at::TensorList state, int64_t handle, std::string_view signature,
                         std::string_view group_name, std::string_view label) {
  detail::without_gradient({},
                           [&] { call_handshake_(state, handle, signature, group_name, label); });
}

void nothing(at::TensorList /*state*/, std::string_view /*group_name*/,
             std::string_view /*label*/) {}

void no_handshake(at::TensorList /*state*/, int64_t /*handle*/, std::string_view /*signature*/,
                  std::string_view /*group_name*/, std::string_view /*label*/) {}

}  // namespace

at::Tensor state_hash(at::TensorList state) {
  static auto op = detail::op_handle<at::Tensor(at::TensorList)>("torchvq::state_hash");
  return op.call(state);
}

at::Tensor replica_hashes(at::TensorList state, const SyncOptions& options) {
  static auto op =
      detail::op_handle<at::Tensor(at::TensorList, std::string_view, std::string_view)>(
          "torchvq::replica_hashes");
  return op.call(state, options.group_name, options.label);
}

void broadcast_state_(at::TensorList state, const SyncOptions& options) {
  static auto op = detail::op_handle<void(at::TensorList, std::string_view, std::string_view)>(
      "torchvq::broadcast_state_");
  op.call(state, options.group_name, options.label);
}

void handshake_(at::TensorList state, const HandshakeOptions& options) {
  call_handshake_(state, options.handle, options.signature, options.group_name, options.label);
}

}  // namespace torchvq::distributed

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def("state_hash(Tensor[] state) -> Tensor");
  m.def(R"(replica_hashes(Tensor[] state, *, str group_name="", str label="quantizer") -> Tensor)");
  m.def(
      "broadcast_state_(Tensor(a!)[] state, *, str group_name=\"\", str label=\"quantizer\") -> "
      "()");
  m.def(
      "handshake_(Tensor(a!)[] state, *, int handle, str signature=\"\", str group_name=\"\", "
      "str label=\"quantizer\") -> ()",
      torchvq::detail::waits());
}

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) {
  using namespace torchvq::distributed;
  m.impl("state_hash", state_hash_any);
  m.impl("replica_hashes", replica_hashes_any);
  m.impl("broadcast_state_", broadcast_state_any_);
  m.impl("handshake_", handshake_any_);
}

TORCH_LIBRARY_IMPL(torchvq, Meta, m) {
  using namespace torchvq::distributed;
  m.impl("state_hash", state_hash_meta);
  m.impl("replica_hashes", replica_hashes_meta);
  m.impl("broadcast_state_", nothing);
  m.impl("handshake_", no_handshake);
}

TORCH_LIBRARY_IMPL(torchvq, Autograd, m) {
  for (const auto* name : {"state_hash", "replica_hashes", "broadcast_state_"}) {
    m.impl(name,
           torch::CppFunction::makeFromBoxedFunction<&torchvq::detail::run_without_gradient>());
  }
  m.impl("handshake_", torchvq::distributed::handshake_autograd_);
}
