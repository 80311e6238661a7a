// CUDA: finds dead codes and candidates and replaces them in nine launches for up to 16 codebooks,
// which end at once if no code is dead. Nothing waits for the device.
#include "ops/replace_dead_codes_.h"

#include <array>
#include <limits>
#include <utility>
#include <vector>

#include <torchvq/random_purpose.h>

#include <ATen/ops/empty.h>

#include "kernels/cuda/dead_codes.h"
#include "ops/cuda/elements.h"
#include "ops/cuda/kernel.h"
#include "ops/dead_code_candidates.h"
#include "ops/replace_with_candidates_.h"

namespace torchvq {
namespace {

using namespace detail::TORCHVQ_CUDA_NAMESPACE;
namespace cuda_dead = kernels::TORCHVQ_CUDA_NAMESPACE;

/// The rows in which candidates are searched, and scratch tensors.
class CudaCandidates {
 public:
  /// `codes` is the number of codes that may be live, `most` the number of candidates wanted per
  /// head, `found` (H,) receives their number; `more` words per head are for the caller.
  CudaCandidates(const at::Tensor& x, const at::Tensor& rng, int64_t codes, int64_t most,
                 at::Tensor found, int64_t more = 0)
      : x_(detail::elements_of(x)),
        rng_(rng.contiguous()),
        found_(std::move(found)),
        words_(
            at::empty({x.size(0) * words_of_head(x.size(1), codes, most, more)}, rng_.options())),
        next_(words_.mutable_data_ptr<int64_t>()) {
    const int64_t heads = x.size(0), rows = x.size(1);
    task.x = x_.const_data_ptr();
    task.type = detail::element_type(x_);
    task.rng = rng_.const_data_ptr<int64_t>();
    task.purpose = static_cast<uint64_t>(RandomPurpose::kDeadCodeCandidates);
    task.heads = heads, task.rows = rows, task.dim = x.size(2), task.most = most;
    task.slots = cuda_dead::candidate_slots(rows, codes);
    task.found = found_.mutable_data_ptr<int64_t>();
    task.chosen = take(most);
    task.bins = take(cuda_dead::kCandidateBinWords);
    task.table_keys = reinterpret_cast<uint64_t*>(take(task.slots));
    task.table_rows = reinterpret_cast<uint64_t*>(take(task.slots));
    task.listed_keys = reinterpret_cast<uint64_t*>(take(rows));
    task.listed_rows = reinterpret_cast<uint64_t*>(take(rows));
  }

  void use_mask(const std::optional<at::Tensor>& mask) {
    if (!mask) return;
    mask_ = mask->expand({task.heads, task.rows}).contiguous();
    task.mask = mask_.const_data_ptr<bool>();
  }
  void use_keys(const at::Tensor& keys) {
    keys_ = keys.contiguous();
    task.keys = keys_.const_data_ptr<int64_t>();
  }

  /// Uninitialised memory of `count` words per head.
  int64_t* take(int64_t count) { return std::exchange(next_, next_ + task.heads * count); }

  cuda_dead::CandidateTask task;

 private:
  static int64_t words_of_head(int64_t rows, int64_t codes, int64_t most, int64_t more) {
    const int64_t slots = cuda_dead::candidate_slots(rows, codes);
    return most + 2 * slots + cuda_dead::kCandidateBinWords + 2 * rows + more;
  }

  at::Tensor x_, rng_, mask_, keys_, found_, words_;
  int64_t* next_;
};

/// A codebook and its candidates. Strided state is updated in a contiguous copy, which store()
/// writes back.
class CudaRepairedCodebook {
 public:
  CudaRepairedCodebook(const detail::DeadCodeState& state, const at::Tensor& x,
                       const at::Tensor& counts, const at::Tensor& rng, at::Tensor replaced)
      : candidates(x, rng, state.embed.size(1), state.embed.size(1), std::move(replaced),
                   state.embed.size(1) + kWordsOfHead + 1),  // order, of_head, wanted
        given_{state.cluster_size, state.embed_avg, state.embed},
        counts_(counts.contiguous()) {
    for (size_t i = 0; i < own_.size(); ++i) own_[i] = given_[i].contiguous();
    order_ = reinterpret_cast<double*>(candidates.take(state.embed.size(1)));
    of_head_ = reinterpret_cast<cuda_dead::DeadCodeHead*>(candidates.take(kWordsOfHead));
    candidates.task.wanted = candidates.take(1);
  }

  template <typename T>
  cuda_dead::DeadCodeTask<T> task(const detail::DeadCodeArguments& arguments) const {
    cuda_dead::DeadCodeTask<T> task;
    task.candidates = candidates.task;
    task.cluster_size = own_[0].mutable_data_ptr<T>();
    task.embed_avg = own_[1].mutable_data_ptr<T>();
    task.embed = own_[2].mutable_data_ptr<T>();
    task.counts = counts_.const_data_ptr<int64_t>();
    task.threshold = arguments.threshold;
    task.threshold_fraction = arguments.threshold_fraction;
    task.reset_cluster_size = arguments.reset_cluster_size;
    task.replace_used = arguments.replace_used;
    task.most_per_token =
        arguments.most_per_token.value_or(std::numeric_limits<double>::infinity());
    task.order = order_, task.of_head = of_head_;
    return task;
  }

  void store() const {
    for (size_t i = 0; i < own_.size(); ++i)
      if (!own_[i].is_same(given_[i])) given_[i].copy_(own_[i]);
  }

  bool wide() const { return own_[2].scalar_type() == at::kDouble; }
  /// Whether one launch may have both.
  bool resembles(const CudaRepairedCodebook& other) const {
    return wide() == other.wide() && candidates.task.type == other.candidates.task.type;
  }

  CudaCandidates candidates;

 private:
  static constexpr int64_t kWordsOfHead = sizeof(cuda_dead::DeadCodeHead) / sizeof(int64_t);

  std::array<at::Tensor, 3> given_, own_;  // cluster_size, embed_avg, embed
  at::Tensor counts_;
  double* order_;
  cuda_dead::DeadCodeHead* of_head_;
};

template <typename T>
void cuda_replace(const char* op, const std::vector<CudaRepairedCodebook>& codebooks,
                  const detail::DeadCodeArguments& arguments, const OnDevice& device) {
  cuda_dead::Tasks<cuda_dead::DeadCodeTask<T>> tasks;
  for (const auto& codebook : codebooks) tasks.add(codebook.task<T>(arguments));
  check_launch(op, cuda_dead::replace_dead_codes(tasks, device.queue()));
  for (const auto& codebook : codebooks) codebook.store();
}

/// Replaces in codebooks that resemble each other, as many as a launch takes, and forgets them.
void cuda_replace_in(const char* op, std::vector<CudaRepairedCodebook>& codebooks,
                     const detail::DeadCodeArguments& arguments, const OnDevice& device) {
  const auto replace = codebooks[0].wide() ? cuda_replace<double> : cuda_replace<float>;
  replace(op, codebooks, arguments, device);
  codebooks.clear();
}

/// Replaces in the codebooks that make(i, replaced) returns for each of `embed`.
template <typename Make>
at::Tensor cuda_replace_in_all(const char* op, at::TensorList embed,
                               const detail::DeadCodeArguments& rules, const Make& make) {
  const OnDevice device(embed[0]);
  int64_t heads = 0, head = 0;
  for (const auto& own : embed) heads += own.size(0);
  const auto replaced = at::empty({heads}, embed[0].options().dtype(at::kLong));
  std::vector<CudaRepairedCodebook> codebooks;
  for (size_t i = 0; i < embed.size(); ++i) {
    CudaRepairedCodebook own = make(i, replaced.narrow(0, head, embed[i].size(0)));
    head += embed[i].size(0);
    const bool full = codebooks.size() == cuda_dead::kMostTasks;
    if (full || (!codebooks.empty() && !own.resembles(codebooks[0])))
      cuda_replace_in(op, codebooks, rules, device);
    codebooks.push_back(std::move(own));
  }
  cuda_replace_in(op, codebooks, rules, device);
  return replaced;
}

at::Tensor cuda_replace_dead_codes_(at::TensorList embed, at::TensorList embed_avg,
                                    at::TensorList cluster_size, at::TensorList x,
                                    at::TensorList counts, at::TensorList rng, at::TensorList mask,
                                    double threshold, double threshold_fraction,
                                    double reset_cluster_size, std::string_view metric,
                                    bool replace_used, std::optional<double> most_per_token) {
  const detail::DeadCodeArguments rules{threshold, threshold_fraction, reset_cluster_size,
                                        replace_used, most_per_token};
  const detail::CodebooksWithTokens all{embed, embed_avg, cluster_size, x, counts, rng, mask};
  const bool unit = detail::check_replace_dead_codes_(all, rules, metric);
  const auto make = [&](size_t i, at::Tensor replaced) {
    CudaRepairedCodebook own(all.state(i), x[i], counts[i], rng[i], std::move(replaced));
    own.candidates.use_mask(all.mask_of(i));
    own.candidates.task.unit = unit;
    return own;
  };
  return cuda_replace_in_all("replace_dead_codes_", embed, rules, make);
}

at::Tensor cuda_replace_with_candidates_(at::TensorList embed, at::TensorList embed_avg,
                                         at::TensorList cluster_size, at::TensorList keys,
                                         at::TensorList rows, at::TensorList counts,
                                         at::TensorList rng, double threshold,
                                         double threshold_fraction, double reset_cluster_size,
                                         bool replace_used, std::optional<double> most_per_token) {
  const detail::DeadCodeArguments rules{threshold, threshold_fraction, reset_cluster_size,
                                        replace_used, most_per_token};
  const detail::CodebooksWithCandidates all{embed, embed_avg, cluster_size, keys,
                                            rows,  counts,    rng};
  detail::check_replace_with_candidates_(all, rules);
  const auto make = [&](size_t i, at::Tensor replaced) {
    CudaRepairedCodebook own(all.state(i), rows[i], counts[i], rng[i], std::move(replaced));
    own.candidates.use_keys(keys[i]);
    return own;
  };
  return cuda_replace_in_all("replace_with_candidates_", embed, rules, make);
}

std::tuple<at::Tensor, at::Tensor> cuda_dead_code_candidates(const at::Tensor& x,
                                                             const at::Tensor& rng, int64_t count,
                                                             const std::optional<at::Tensor>& mask,
                                                             std::string_view metric) {
  const bool unit = detail::check_dead_code_candidates(x, rng, count, mask, metric);
  const OnDevice device(x);
  const auto found = at::empty({x.size(0)}, rng.options());
  CudaCandidates candidates(x, rng, 0, count, found);
  candidates.use_mask(mask);
  candidates.task.unit = unit;
  auto keys = at::empty({x.size(0), count}, rng.options());
  const auto dtype = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  auto rows = at::empty({x.size(0), count, x.size(2)}, x.options().dtype(dtype));
  check_launch("dead_code_candidates",
               cuda_dead::dead_code_candidates(candidates.task, keys.mutable_data_ptr<int64_t>(),
                                               rows.mutable_data_ptr(), device.queue()));
  return {keys, rows};
}

}  // namespace

TORCHVQ_CUDA_KERNEL(replace_dead_codes_, cuda_replace_dead_codes_)
TORCHVQ_CUDA_KERNEL(replace_with_candidates_, cuda_replace_with_candidates_)
TORCHVQ_CUDA_KERNEL(dead_code_candidates, cuda_dead_code_candidates)

}  // namespace torchvq
