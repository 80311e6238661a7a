// The only code that calls a process group: resolves it by name, counts messages, and explains
// failures.
#pragma once

#include <exception>
#include <memory>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>

namespace torchvq::distributed {

/// The end of the errors of a message.
inline constexpr auto kChangedNothing =
    "This call has changed nothing, but for what precedes its messages: affine statistics, codes "
    "with an optimizer of their own and, where candidates for dead codes need a message of their "
    "own, the averages.";

/// The caller, for errors. `rng` (2,) holds the step; it is read only after a failure, and may be
/// undefined.
struct Caller {
  std::string label;
  at::Tensor rng;
};

/// A sum that was started and not yet awaited. It holds the tensor and, in c10d, the work. If it is
/// destroyed, the group still completes the message.
struct StartedSum {
  struct Work;
  std::shared_ptr<Work> work;  ///< none without a group
  const char* what = "";
};

/// A process group beyond a call, without keeping it alive. While this exists no other group has the
/// address of that one, so all ranks distinguish new from old in the same way.
struct KnownGroup {
  struct Weak;
  std::shared_ptr<const Weak> weak;  ///< none without a group
};

/// A process group for one call, or until a sum that it started is complete. The methods that take
/// a tensor are collectives, and do nothing without a group; the others are local.
class Group {
 public:
  /// Throws c10::ValueError if no group has this name. An empty name, one rank, or TORCHVQ_SYNC=0
  /// means no group.
  Group(std::string_view name, Caller caller);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  [[nodiscard]] bool alone() const { return size_ == 1; }
  [[nodiscard]] int64_t size() const { return size_; }
  [[nodiscard]] int64_t rank() const { return rank_; }
  [[nodiscard]] const std::string& name() const { return name_; }
  /// The group for later calls to recognise, which a new group of the same name is not.
  [[nodiscard]] KnownGroup known() const;
  [[nodiscard]] bool is(const KnownGroup& other) const;

  /// `what` completes "while sharing ...". `tensor` is contiguous and is written.
  void sum_(const at::Tensor& tensor, const char* what) const;
  /// The two halves of sum_(). In between the tensor must not be read or written; other collectives
  /// may run. The wait is not a collective: each rank may wait at any time.
  [[nodiscard]] StartedSum start_sum(const at::Tensor& tensor, const char* what) const;
  void wait(const StartedSum& sum) const;
  void max_(const at::Tensor& tensor, const char* what) const;
  /// (size, *tensor.shape).
  [[nodiscard]] at::Tensor all_gather(const at::Tensor& tensor, const char* what) const;
  /// From rank 0.
  void broadcast_(const at::Tensor& tensor, const char* what) const;

  /// "encoder.vq, step 12": the subject of every error.
  [[nodiscard]] std::string subject() const;

 private:
  struct Impl;
  template <typename Start>
  StartedSum begin(const at::Tensor& tensor, const char* what, Start start) const;
  template <typename Start>
  void run(const at::Tensor& tensor, const char* what, Start start) const;
  [[noreturn]] void fail(const char* what, const std::exception& error) const;
  void check_device(const at::Tensor& tensor) const;

  std::unique_ptr<Impl> impl_;
  Caller caller_;
  std::string name_;
  int64_t size_ = 1;
  int64_t rank_ = 0;
};

/// A row per rank: `values` (n,) in this rank's and zeros in the others, so that a sum gathers them.
at::Tensor own_row(const Group& group, const at::Tensor& values);

}  // namespace torchvq::distributed
