#include "processes.h"

#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <torchvq/distributed/all_reduce.h>
#include <torchvq/distributed/sync.h>

#include <csignal>
#include <cstdlib>
#include <optional>
#include <vector>

#include "gloo_group.h"
#include "shard_lines.h"

namespace torchvq::cli {
namespace {

constexpr int kMostProcesses = 1 << 20;
constexpr int kLargestPort = 65535;

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

int number(const char* name, int least, int most) {
  const auto text = variable(name);
  TORCH_CHECK_VALUE(text.has_value(), "environment: expected ", name,
                    " beside the other variables of torchrun (RANK, WORLD_SIZE, MASTER_ADDR, "
                    "MASTER_PORT), but it is not set; TORCHVQ_SYNC=0 keeps a process alone");
  char* end = nullptr;
  const auto value = std::strtol(text->c_str(), &end, 10);
  TORCH_CHECK_VALUE(end != text->c_str() && *end == '\0' && value >= least && value <= most,
                    "environment: expected ", name, " to be a number in [", least, ", ", most,
                    "], but got ", *text);
  return static_cast<int>(value);
}

Rendezvous read_rendezvous(int rank, int size, std::chrono::seconds timeout) {
  Rendezvous rendezvous;
  rendezvous.rank = rank;
  rendezvous.size = size;
  rendezvous.port = number("MASTER_PORT", 1, kLargestPort);
  const auto address = variable("MASTER_ADDR");
  TORCH_CHECK_VALUE(address.has_value(),
                    "environment: expected MASTER_ADDR beside RANK and WORLD_SIZE, but it is not "
                    "set; torchrun sets all of them");
  rendezvous.address = *address;
  rendezvous.store_is_there = variable("TORCHELASTIC_USE_AGENT_STORE") == "True";
  rendezvous.attempt = variable("TORCHELASTIC_RESTART_COUNT").value_or("0");
  const auto secret = variable("TORCHVQ_SECRET");
  // Empty because the command that should have made it failed, it would let everybody join.
  TORCH_CHECK_VALUE(secret != "",
                    "environment: expected TORCHVQ_SECRET to be a word, but got an empty one; "
                    "unset it to do without a secret");
  rendezvous.secret = secret.value_or("");
  rendezvous.timeout = timeout;
  return rendezvous;
}

void replace_all(std::string& text, const std::string& word, const std::string& by) {
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + by.size())) {
    text.replace(at, word.size(), by);
  }
}

void check_equal(const at::Tensor& lines) {
  const auto first = lines.select(0, 0);
  for (int64_t rank = 1; rank < lines.size(0); ++rank) {
    const auto line = lines.select(0, rank);
    // First, because vectors of different fits may well differ in their dimension.
    TORCH_CHECK_VALUE(text_of(line) == text_of(first),
                      "expected the same command on all processes, but got ", text_of(first),
                      " on rank 0 and ", text_of(line), " on rank ", rank);
    const auto dim = line.const_data_ptr<int64_t>()[kDim];
    const auto wanted = first.const_data_ptr<int64_t>()[kDim];
    TORCH_CHECK_VALUE(dim == wanted, "expected vectors of one dimension on all processes, but got ",
                      wanted, " on rank 0 and ", dim, " on rank ", rank);
  }
}

}  // namespace

struct Processes::Group {
  explicit Group(const Rendezvous& rendezvous) : gloo(rendezvous) {}

  distributed::SyncOptions options() const { return {gloo.name(), "torchvq"}; }

  GlooGroup gloo;
};

Processes::Processes(std::chrono::seconds timeout) {
  if ((!variable("RANK") && !variable("WORLD_SIZE")) || !distributed::enabled()) return;
  size_ = number("WORLD_SIZE", 1, kMostProcesses);
  rank_ = number("RANK", 0, size_ - 1);
  if (size_ == 1) return;
  // If another process ends, this one then gets a connection error with a message instead of
  // a signal (as in Python).
  std::signal(SIGPIPE, SIG_IGN);
  group_ = std::make_unique<Group>(read_rendezvous(rank_, size_, timeout));
}

Processes::~Processes() = default;

std::string Processes::own_path(const std::string& path) const {
  auto own = path;
  replace_all(own, "{rank}", std::to_string(rank_));
  replace_all(own, "{world_size}", std::to_string(size_));
  return own;
}

functional::Shard Processes::agree(const std::function<ShardNote()>& prepare) const {
  if (alone()) {
    prepare();
    return {};
  }
  ShardNote note;
  std::exception_ptr failure;
  try {
    note = prepare();
  } catch (...) {
    failure = std::current_exception();
  }
  // Each process contributes its own row and zeros, so the sum gathers the rows.
  auto lines = at::zeros({size_, kLineWords}, at::kLong);
  lines.select(0, rank_).copy_(line_of(note, failure == nullptr));
  lines = distributed::all_reduce_statistics(lines, group_->options());
  // If several processes failed, the first of them reports its error.
  const auto before = lines.select(1, kReady).narrow(0, 0, rank_).sum().item<int64_t>();
  if (failure && before == rank_) std::rethrow_exception(failure);
  if (lines.select(1, kReady).sum().item<int64_t>() < size_) throw FailedElsewhere();
  // All processes see the same rows; only the first reports an error.
  try {
    check_equal(lines);
  } catch (const c10::ValueError&) {
    if (first()) throw;
    throw FailedElsewhere();
  }
  const auto rows = lines.select(1, kRows);
  return {group_->gloo.name(), rows.narrow(0, 0, rank_).sum().item<int64_t>(),
          rows.sum().item<int64_t>()};
}

void Processes::together(const std::function<void()>& work) const {
  if (alone()) {
    work();
    return;
  }
  try {
    work();
  } catch (const FailedElsewhere&) {
    throw;
  } catch (const c10::DistError&) {
    if (group_->gloo.heard_failure()) throw FailedElsewhere();
    C10_THROW_ERROR(DistError, c10::str("rank ", rank_, " of ", size_,
                                        ": expected all processes to answer within --timeout, but "
                                        "got no answer from one that ended or is too far behind"));
  } catch (...) {
    group_->gloo.tell_failure();
    throw;
  }
}

void Processes::on_first(const std::function<void()>& work) const {
  agree([&] {
    if (first()) work();
    return ShardNote{};
  });
}

}  // namespace torchvq::cli
