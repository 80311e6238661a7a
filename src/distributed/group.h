// The one place that talks to a process group: resolves it by name, counts, and turns failures into
// sentences.
#pragma once

#include <exception>
#include <memory>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>

namespace torchvq::distributed {

/// Who calls, for errors. `rng` (2,) holds the step; it is read only when something failed, and may
/// be undefined.
struct Caller {
  std::string label;
  at::Tensor rng;
};

/// A sum that was started and has not been waited for. It holds the tensor and, in c10d, the work:
/// who drops it leaves the message to the group, which finishes it by itself.
struct StartedSum {
  struct Work;
  std::shared_ptr<Work> work;  ///< none when alone
  const char* what = "";
};

/// A process group for the time of one call, or until a sum that it started has come. Every method
/// is a collective, and does nothing when alone.
class Group {
 public:
  /// Throws c10::ValueError where no group has this name. Empty name, one rank, or TORCHVQ_SYNC=0:
  /// alone.
  Group(std::string_view name, Caller caller);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  [[nodiscard]] bool alone() const { return size_ == 1; }
  [[nodiscard]] int64_t size() const { return size_; }
  [[nodiscard]] int64_t rank() const { return rank_; }
  [[nodiscard]] const std::string& name() const { return name_; }
  /// How many collectives the group has seen: the same number on all ranks, and small again for a
  /// new group of an old name. 0 where the backend does not count. (The group's address would tell
  /// new from old, but differently on every rank, because memory is used again.)
  [[nodiscard]] uint64_t collectives() const;

  /// `what` completes "while sharing ...". `tensor` is contiguous and is written.
  void sum_(const at::Tensor& tensor, const char* what) const;
  /// The two halves of sum_(). In between nobody reads or writes the tensor, and other collectives
  /// may come and go. The wait is no collective: a rank waits when it likes.
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

}  // namespace torchvq::distributed
