// Detection and reporting of disagreement between ranks. All ranks decide from the same numbers.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "distributed/group.h"

namespace torchvq::distributed {

/// Integers at the head of every packed buffer. A multiple of 64 bytes, so that the rest stays
/// aligned.
constexpr int64_t kHeaderSize = 8;

/// [h0, h1, h2, h0^2, h1^2, h2^2, news, 0]: 48 bits of `hash` in three words and their squares,
/// and the count `news`. Words of 16 bits keep the sums exact for up to 46340 ranks. `hash` and
/// `news` are int64 scalars.
at::Tensor make_header(const at::Tensor& hash, const at::Tensor& news);

struct Verdict {
  bool agree;
  /// Sum of the `news` of all ranks.
  int64_t news;
};

/// Reads a summed header: W numbers h are equal iff W * sum(h^2) == sum(h)^2. Reads from the
/// device.
Verdict read_header(const at::Tensor& sum, int64_t size);

/// A number and a text of each rank, exchanged by one fixed-size all-gather. A long text keeps its
/// beginning and a hash of the whole.
struct Note {
  int64_t number;
  std::string text;
};
std::vector<Note> exchange_notes(const Group& group, const Note& note, at::Device device);

/// "rank 0: decay 0.8; ranks 1, 2: decay 0.9": the parts of the texts that are not alike on all
/// ranks, with equal ones merged.
std::string list_differences(const std::vector<Note>& notes);

/// A readable description of everything that must be the same on all ranks in a step.
std::string describe_step(const std::string& signature, const at::Tensor& state_hash,
                          const at::Tensor& rng);

/// Called by all ranks after a failed comparison: exchanges the values of all ranks, and throws
/// c10::DistError.
[[noreturn]] void throw_disagreement(const Group& group, const std::string& description,
                                     at::Device device);

}  // namespace torchvq::distributed
