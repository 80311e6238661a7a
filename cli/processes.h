// Several processes that run one command together, for example started by torchrun.
#pragma once

#include <torchvq/functional/vector_blocks.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>

#include "shard_lines.h"

namespace torchvq::cli {

/// The processes that share a command. With neither RANK nor WORLD_SIZE in the environment, with one
/// process, or with TORCHVQ_SYNC=0, this process runs alone, without communication.
class Processes {
 public:
  /// Joins the other processes over MASTER_ADDR and MASTER_PORT (Gloo); all must have
  /// the same TORCHVQ_SECRET. Under torchrun the n-th command of each process meets the n-th of the others.
  ///
  /// Throws c10::ValueError for an incomplete or contradictory environment, c10::DistError if the
  /// others do not arrive in time.
  explicit Processes(std::chrono::seconds timeout);
  ~Processes();
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  bool alone() const { return size_ == 1; }
  bool first() const { return rank_ == 0; }
  int rank() const { return rank_; }
  int size() const { return size_; }

  /// `path` with {rank} and {world_size} filled in.
  std::string own_path(const std::string& path) const;

  /// Runs `prepare` on every process, and then returns the place of this process's rows among all.
  ///
  /// Throws the exception of `prepare`; FailedElsewhere on the others; c10::ValueError on all if
  /// dims or commands differ.
  functional::Shard agree(const std::function<ShardNote()>& prepare) const;

  /// Runs `work` on all processes. Reports an error here to the others; an error of another process
  /// becomes FailedElsewhere, or c10::DistError if that process could not report it.
  void together(const std::function<void()>& work) const;

  /// Runs `work` on the first process, and returns on all when it is done; throws as agree() does.
  void on_first(const std::function<void()>& work) const;

 private:
  struct Group;

  int rank_ = 0;
  int size_ = 1;
  std::unique_ptr<Group> group_;
};

/// Another process has reported the error: this one exits without a message.
class FailedElsewhere : public std::exception {
 public:
  const char* what() const noexcept override { return "another process failed"; }
};

}  // namespace torchvq::cli
