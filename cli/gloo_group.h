// A process group over Gloo, created in C++.
#pragma once

#include <chrono>
#include <memory>
#include <string>

namespace torchvq::cli {

struct Rendezvous {
  int rank = 0;
  int size = 1;
  std::string address;
  int port = 0;
  bool store_is_there =
      false;  // torchrun's agent holds it, for all commands; otherwise rank 0 does, for this one
  std::string attempt;  // counts the restarts of the processes by torchrun
  std::string secret;   // must be the same on all processes; empty: anyone may join
  std::chrono::seconds timeout{};
};

/// A group that is registered under name() during the lifetime of this object.
class GlooGroup {
 public:
  /// Throws c10::DistError if the others do not arrive in time.
  explicit GlooGroup(const Rendezvous& rendezvous);
  ~GlooGroup();
  GlooGroup(const GlooGroup&) = delete;
  GlooGroup& operator=(const GlooGroup&) = delete;

  const std::string& name() const;

  /// Tells the others, if possible, that this process ends with an error.
  void tell_failure() noexcept;
  bool heard_failure() noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace torchvq::cli
