// Ranks as threads of one program, joined by Gloo over a hash store.
#pragma once

#include <stdlib.h>

#include <chrono>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace torchvq::testing {

/// The name of a rank's group; different per rank, because ranks share one process.
inline std::string group_of(int rank) { return "engine" + std::to_string(rank); }

/// A Gloo group, registered for the lifetime of this object.
template <typename Gloo>
class Member {
 public:
  Member(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size) : name_(group_of(rank)) {
    auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::milliseconds(5000));
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
    const auto gloo = c10::make_intrusive<Gloo>(store, rank, size, options);
    wait_for_all(*store, rank, size);
    group_ = c10::make_intrusive<c10d::ProcessGroup>(store, rank, size);
    group_->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
    group_->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::GLOO, gloo);
    c10d::register_process_group(name_, group_);
  }
  ~Member() { c10d::unregister_process_group(name_); }
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  [[nodiscard]] const std::string& name() const { return name_; }

 private:
  /// A rank that finishes early must not leave while others still connect to it.
  static void wait_for_all(c10d::Store& store, int rank, int size) {
    const auto key = [](int of) { return "connected" + std::to_string(of); };
    store.set(key(rank), std::vector<uint8_t>{1});
    for (int other = 0; other < size; ++other) {
      store.wait({key(other)}, std::chrono::milliseconds(5000));
    }
  }

  std::string name_;
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
};

using Body = std::function<void(int rank, const std::string& group_name)>;

/// Runs the body on `size` ranks; returns what each threw, or "".
///
/// @tparam Gloo  the backend of the groups.
template <typename Gloo = c10d::ProcessGroupGloo>
std::vector<std::string> on_ranks(int size, const Body& body) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  // torch's flight recorder of collectives assumes one rank per process: up to torch 2.11, threads
  // race in it.
  ::setenv("TORCH_FR_BUFFER_SIZE", "0", 0);
  std::vector<std::string> errors(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const Member<Gloo> member(store, rank, size);
        body(rank, member.name());
      } catch (const c10::Error& error) {
        errors[rank] = error.what_without_backtrace();
      } catch (const std::exception& error) {
        errors[rank] = error.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return errors;
}

}  // namespace torchvq::testing
