#include "distributed/group.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <ATen/SavedTensorHooks.h>
#include <ATen/ThreadLocalPythonObjects.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/record_function.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <torchvq/distributed/sync.h>

#include "distributed/traffic.h"

namespace torchvq::distributed {
namespace {

using GroupPointer = c10::intrusive_ptr<c10d::ProcessGroup>;

GroupPointer resolve(const std::string& name, const std::string& label) {
  GroupPointer group;
  try {
    group = c10d::resolve_process_group(name);
  } catch (const std::exception&) {
    // The check below reports the failure with the caller's label.
    group.reset();
  }
  TORCH_CHECK_VALUE(group, label,
                    ": expected group_name to be the name of a living process group, but got \"",
                    name, "\"; was the group destroyed, or never made on this rank?");
  return group;
}

/// The message alone: the C++ backtrace of c10::Error::what() is noise here.
std::string message_of(const std::exception& error) {
  const auto* known = dynamic_cast<const c10::Error*>(&error);
  return known != nullptr ? known->what_without_backtrace() : error.what();
}

/// Uses only methods that exist in every supported version of torch.
bool sends(const c10d::ProcessGroup& group, c10::DeviceType type) {
  const auto devices = group.getDeviceTypes();
  return std::any_of(devices.begin(), devices.end(),
                     [type](const c10::Device& device) { return device.type() == type; });
}

/// Takes the thread's Python objects away while a collective starts: the hooks of saved tensors, and
/// what autograd keeps for its threads. Work copies them, Gloo's thread releases that copy late and
/// needs the GIL for it, and the process aborts if its interpreter is ending by then.
class WithoutPythonObjects {
 public:
  WithoutPythonObjects()
      : objects_(at::impl::ThreadLocalPythonObjects::get_state()),
        hooks_(at::SavedTensorDefaultHooks::get_tls_state()) {
    at::impl::ThreadLocalPythonObjects::set_state({});
    at::SavedTensorDefaultHooks::set_tls_state({});
  }
  ~WithoutPythonObjects() {
    at::SavedTensorDefaultHooks::set_tls_state(hooks_);
    at::impl::ThreadLocalPythonObjects::set_state(std::move(objects_));
  }
  WithoutPythonObjects(const WithoutPythonObjects&) = delete;
  WithoutPythonObjects& operator=(const WithoutPythonObjects&) = delete;

 private:
  at::impl::ThreadLocalPythonObjects objects_;
  at::impl::SavedTensorDefaultHooksTLS hooks_;
};

constexpr auto kReasons =
    "Likely reasons: another rank ended or raised an exception; it did not reach this call (it "
    "evaluates, is frozen, took another branch, ran out of batches, does not synchronise this "
    "module, or its module is new while this one is not); or it came later than the timeout of the "
    "group. ";

}  // namespace

struct Group::Impl {
  GroupPointer group;
};

struct KnownGroup::Weak {
  c10::weak_intrusive_ptr<c10d::ProcessGroup> group;
};

struct StartedSum::Work {
  c10::intrusive_ptr<c10d::Work> work;
};

Group::Group(std::string_view name, Caller caller) : caller_(std::move(caller)), name_(name) {
  if (name.empty() || !enabled()) return;
  auto group = resolve(name_, caller_.label);
  size_ = group->getSize();
  rank_ = group->getRank();
  if (size_ > 1) impl_ = std::make_unique<Impl>(Impl{std::move(group)});
}

Group::~Group() = default;

KnownGroup Group::known() const {
  if (!impl_) return {};
  const c10::weak_intrusive_ptr<c10d::ProcessGroup> weak(impl_->group);
  return {std::make_shared<const KnownGroup::Weak>(KnownGroup::Weak{weak})};
}

bool Group::is(const KnownGroup& other) const {
  return impl_ && other.weak && other.weak->group._unsafe_get_target() == impl_->group.get();
}

std::string Group::subject() const {
  auto subject = caller_.label;
  if (!caller_.rng.defined()) return subject;
  try {
    return subject + ", step " + std::to_string(caller_.rng.select(0, 1).item<int64_t>());
  } catch (const std::exception&) {
    // A device that failed cannot be read; the error that matters is the one being reported.
    return subject;
  }
}

void Group::check_device(const at::Tensor& tensor) const {
  auto& group = *impl_->group;
  TORCH_CHECK(
      !group.hasBackends() || sends(group, tensor.device().type()), subject(), ": process group \"",
      name_, "\" (", group.getBackendName(), ") cannot send tensors on ", tensor.device(),
      "; move the module to a device of the group, or pass a process_group that supports this one");
}

void Group::fail(const char* what, const std::exception& error) const {
  C10_THROW_ERROR(DistBackendError,
                  c10::str(subject(), ": rank ", rank_, " of ", size_, " (process group \"", name_,
                           "\", ", impl_->group->getBackendName(), ") failed while sharing ", what,
                           ": ", message_of(error), "\n", kReasons, kChangedNothing));
}

template <typename Start>
StartedSum Group::begin(const at::Tensor& tensor, const char* what, Start start) const {
  check_device(tensor);
  const at::NoGradGuard no_grad;
  // A new tensor without a Python object. Gloo's thread releases its tensor late, which would
  // otherwise need the GIL; a main thread that destroys the group holds the GIL while it
  // waits for Gloo's thread.
  const auto own = tensor.detach();
  const WithoutPythonObjects none;
  try {
    return {std::make_shared<StartedSum::Work>(StartedSum::Work{start(*impl_->group, own)}), what};
  } catch (const std::exception& error) {
    fail(what, error);
  }
}

void Group::wait(const StartedSum& sum) const {
  if (!sum.work) return;
  const at::NoGradGuard no_grad;
  // Names the wait in profiles.
  RECORD_FUNCTION("torchvq::collective", std::vector<c10::IValue>{});
  try {
    sum.work->work->wait();
  } catch (const std::exception& error) {
    fail(sum.what, error);
  }
}

template <typename Start>
void Group::run(const at::Tensor& tensor, const char* what, Start start) const {
  wait(begin(tensor, what, start));
}

void Group::sum_(const at::Tensor& tensor, const char* what) const {
  wait(start_sum(tensor, what));
}

StartedSum Group::start_sum(const at::Tensor& tensor, const char* what) const {
  if (alone()) return {};
  count_collective(Collective::kAllReduce, static_cast<int64_t>(tensor.nbytes()));
  return begin(tensor, what, [&](c10d::ProcessGroup& group, const at::Tensor& own) {
    std::vector<at::Tensor> tensors{own};
    return group.allreduce(tensors, {});
  });
}

void Group::max_(const at::Tensor& tensor, const char* what) const {
  if (alone()) return;
  count_collective(Collective::kAllReduce, static_cast<int64_t>(tensor.nbytes()));
  run(tensor, what, [&](c10d::ProcessGroup& group, const at::Tensor& own) {
    std::vector<at::Tensor> tensors{own};
    c10d::AllreduceOptions options;
    options.reduceOp = c10d::ReduceOp::MAX;
    return group.allreduce(tensors, options);
  });
}

at::Tensor Group::all_gather(const at::Tensor& tensor, const char* what) const {
  if (alone()) return tensor.unsqueeze(0);
  count_collective(Collective::kAllGather, static_cast<int64_t>(tensor.nbytes()));
  auto shape = tensor.sizes().vec();
  shape.insert(shape.begin(), size_);
  const auto all = at::empty(shape, tensor.options());
  run(tensor, what, [&](c10d::ProcessGroup& group, const at::Tensor& own) {
    std::vector<std::vector<at::Tensor>> outputs{all.unbind(0)};
    std::vector<at::Tensor> inputs{own};
    return group.allgather(outputs, inputs);
  });
  // As in begin(): Gloo's thread may still hold parts of `all`, so Python
  // must not get `all` itself.
  return all.detach();
}

void Group::broadcast_(const at::Tensor& tensor, const char* what) const {
  if (alone()) return;
  count_collective(Collective::kBroadcast, static_cast<int64_t>(tensor.nbytes()));
  run(tensor, what, [&](c10d::ProcessGroup& group, const at::Tensor& own) {
    std::vector<at::Tensor> tensors{own};
    return group.broadcast(tensors, {});
  });
}

at::Tensor own_row(const Group& group, const at::Tensor& values) {
  return at::constant_pad_nd(values.unsqueeze(0),
                             {0, 0, group.rank(), group.size() - 1 - group.rank()});
}

}  // namespace torchvq::distributed
