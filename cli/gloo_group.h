// A process group over Gloo, made in C++.
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
  bool store_is_there = false;  // torchrun's agent holds it; otherwise rank 0 does
  std::string attempt;          // counts the restarts of the processes by torchrun
  std::string secret;           // what the others must know too; empty: anyone may join
  std::chrono::seconds timeout{};
};

/// A group registered under name() for as long as this lives.
class GlooGroup {
 public:
  /// Throws c10::DistError where the others do not come in time.
  explicit GlooGroup(const Rendezvous& rendezvous);
  ~GlooGroup();
  GlooGroup(const GlooGroup&) = delete;
  GlooGroup& operator=(const GlooGroup&) = delete;

  const std::string& name() const;

  /// Tells the others, as far as they can be told, that this process ends with an error.
  void tell_failure() noexcept;
  bool heard_failure() noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace torchvq::cli
