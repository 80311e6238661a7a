#include "gloo_group.h"

#include <c10/util/Exception.h>
#include <c10/util/Logging.h>

#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <cstdlib>
#include <exception>
#include <sstream>
#include <vector>

#include "listening_socket.h"
#include "signed_store.h"

namespace torchvq::cli {
namespace {

using std::chrono::milliseconds;

const std::string kName = "torchvq";
const std::string kFailed = "failed";
constexpr auto kFarewell = milliseconds(5000);

// The store of torchrun outlives a command, so each rank counts its commands, and its n-th meets the n-th of the others
// only. It counts as soon as it reaches the store, so that a command that gives up on one rank shifts no later one.
std::string prefix_of_command(c10d::Store& store, const Rendezvous& rendezvous) {
  const auto job = "torchvq/" + rendezvous.attempt;
  if (!rendezvous.store_is_there) return job;
  const auto count = store.add(job + "/commands/" + std::to_string(rendezvous.rank), 1);
  return job + "/" + std::to_string(count);
}

c10::intrusive_ptr<c10d::Store> make_store(const Rendezvous& rendezvous) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(rendezvous.port);
  options.isServer = rendezvous.rank == 0 && !rendezvous.store_is_there;
  options.numWorkers = static_cast<size_t>(rendezvous.size);
  options.waitWorkers = false;
  options.timeout = rendezvous.timeout;
  // By default a store listens on all addresses of the machine.
  if (options.isServer) options.masterListenFd = listen_on(rendezvous.address, options.port);
  const auto store = c10::make_intrusive<c10d::TCPStore>(rendezvous.address, options);
  // A stranger who changes the count, which is not signed, can only prevent a meeting.
  return c10::make_intrusive<c10d::PrefixStore>(
      prefix_of_command(*store, rendezvous),
      c10::make_intrusive<SignedStore>(store, rendezvous.secret));
}

using Devices = std::vector<std::shared_ptr<::gloo::transport::Device>>;

// As torch reads GLOO_SOCKET_IFNAME: several interfaces, separated by commas, share the traffic, and an empty list
// names none.
Devices make_devices(const std::string& address) {
  Devices devices;
  const char* interfaces = std::getenv("GLOO_SOCKET_IFNAME");
  std::istringstream names(interfaces == nullptr ? "" : interfaces);
  for (std::string name; std::getline(names, name, ',');) {
    devices.push_back(c10d::ProcessGroupGloo::createDeviceForInterface(name));
  }
  if (!devices.empty()) return devices;
  // If the rendezvous is on the loopback, all processes are on this machine.
  if (address == "localhost" || address == "127.0.0.1") {
    return {c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1")};
  }
  return {c10d::ProcessGroupGloo::createDefaultDevice()};
}

// c10d logs exceptions with a backtrace; the program reports an exception in one line.
void silence_logs() {
  constexpr auto kLevel = "TORCH_CPP_LOG_LEVEL";
  if (std::getenv(kLevel) != nullptr) return;
  ::setenv(kLevel, "FATAL", 0);
  c10::initLogging();
}

std::string reason(const std::exception& error) {
  const auto* known = dynamic_cast<const c10::Error*>(&error);
  const std::string text = known != nullptr ? known->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

[[noreturn]] void throw_not_met(const Rendezvous& rendezvous,
                                std::chrono::steady_clock::duration waited,
                                const std::exception& error) {
  C10_THROW_ERROR(
      DistError,
      c10::str("rank ", rendezvous.rank, " of ", rendezvous.size,
               ": the processes did not meet at ", rendezvous.address, ":", rendezvous.port,
               "; gave up after ", std::chrono::duration_cast<std::chrono::seconds>(waited).count(),
               " s, with --timeout ", rendezvous.timeout.count(), ": ", reason(error)));
}

}  // namespace

struct GlooGroup::Impl {
  c10::intrusive_ptr<c10d::Store> store;
  c10::intrusive_ptr<c10d::ProcessGroup> group;
};

GlooGroup::GlooGroup(const Rendezvous& rendezvous) : impl_(std::make_unique<Impl>()) {
  const auto rank = rendezvous.rank, size = rendezvous.size;
  const auto begin = std::chrono::steady_clock::now();
  silence_logs();
  try {
    impl_->store = make_store(rendezvous);
    const auto options = c10d::ProcessGroupGloo::Options::create(rendezvous.timeout);
    options->devices = make_devices(rendezvous.address);
    const auto gloo =
        c10::make_intrusive<c10d::ProcessGroupGloo>(impl_->store, rank, size, options);
    impl_->group = c10::make_intrusive<c10d::ProcessGroup>(impl_->store, rank, size);
    impl_->group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
    impl_->group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::GLOO, gloo);
    c10d::register_process_group(kName, impl_->group);
  } catch (const std::exception& error) {
    throw_not_met(rendezvous, std::chrono::steady_clock::now() - begin, error);
  }
}

GlooGroup::~GlooGroup() {
  c10d::unregister_process_group(kName);
  // Rank 0 may hold the store, so it waits until the others, which may still be reading, have left.
  try {
    std::vector<std::string> others;
    for (int rank = 1; rank < impl_->group->getSize(); ++rank) {
      others.push_back("left/" + std::to_string(rank));
    }
    const auto rank = impl_->group->getRank();
    if (std::uncaught_exceptions() > 0) return;
    if (rank > 0) impl_->store->set("left/" + std::to_string(rank), std::vector<uint8_t>{1});
    if (rank == 0) impl_->store->wait(others, kFarewell);
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch)
    // A rank that has ended cannot answer.
  }
}

const std::string& GlooGroup::name() const { return kName; }

void GlooGroup::tell_failure() noexcept {
  try {
    impl_->store->set(kFailed, std::vector<uint8_t>{1});
  } catch (...) {  // NOLINT(bugprone-empty-catch)
    // The others will notice the lost connection.
  }
}

bool GlooGroup::heard_failure() noexcept {
  try {
    return impl_->store->check({kFailed});
  } catch (...) {
    return false;
  }
}

}  // namespace torchvq::cli
