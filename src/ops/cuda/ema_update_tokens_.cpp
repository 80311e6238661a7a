// CUDA: the three operators that it combines, with the launches of one codebook for up to 16 of
// them. Codebooks or tokens of different types fall back to the any-device kernel.
#include "ops/ema_update_tokens_.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/strides.h>

#include "ops/code_statistics.h"
#include "ops/cuda/learning_tasks.h"

namespace torchvq {
namespace {

using namespace detail::TORCHVQ_CUDA_NAMESPACE;

/// Hands out consecutive parts of one tensor of int64, so that one launch initialises all of them.
class CudaParts {
 public:
  explicit CudaParts(at::Tensor whole) : whole_(std::move(whole)), ints_(whole_.view(at::kInt)) {}

  at::Tensor next(at::IntArrayRef shape) {
    const int64_t begin = begin_;
    begin_ += c10::multiply_integers(shape);
    return part(whole_, shape, begin);
  }
  at::Tensor next_int(at::IntArrayRef shape) {
    const int64_t begin = begin_;
    begin_ += words_of_ints(c10::multiply_integers(shape));
    return part(ints_, shape, 2 * begin);
  }
  static int64_t words_of_ints(int64_t size) { return (size + 1) / 2; }

 private:
  static at::Tensor part(const at::Tensor& whole, at::IntArrayRef shape, int64_t begin) {
    return whole.as_strided(shape, c10::contiguous_strides(shape), begin);
  }

  at::Tensor whole_, ints_;
  int64_t begin_ = 0;
};

/// A codebook, its tokens, and their intermediate results.
struct CudaLearnedCodebook {
  LearnedTokens tokens;
  EmaCodebook state;
  at::Tensor embed, exponents, totals, weight;
  StatisticsRoom room;

  CudaLearnedCodebook(const detail::EmaUpdateTokensArguments& arguments, size_t i, CudaParts& zeros)
      : tokens(arguments.x[i], arguments.indices[i], arguments.mask_of(i)),
        state(arguments.cluster_size[i], arguments.embed_avg[i], arguments.embed[i]),
        embed(arguments.embed[i].contiguous()) {
    const int64_t heads = embed.size(0), size = embed.size(1), dim = embed.size(2);
    exponents = at::empty({heads, size}, embed.options().dtype(at::kInt));
    totals = zeros.next({heads, 2});
    room.counts = zeros.next({heads, size});
    room.sums = zeros.next({detail::sum_words(tokens.x.scalar_type()), heads, size, dim});
    room.used = zeros.next_int({heads, size});
    weight = ema_weight(arguments.weight, {heads, size});
  }
};

std::vector<CudaLearnedCodebook> cuda_learned_codebooks(
    const detail::EmaUpdateTokensArguments& arguments) {
  int64_t words = 0;
  for (size_t i = 0; i < arguments.embed.size(); ++i) {
    const auto& embed = arguments.embed[i];
    const int64_t own = embed.size(0) * embed.size(1);
    words += embed.size(0) * 2 + own + CudaParts::words_of_ints(own);
    words += detail::sum_words(arguments.x[i].scalar_type()) * own * embed.size(2);
  }
  const auto options = arguments.embed[0].options();
  CudaParts zeros(at::zeros({words}, options.dtype(at::kLong)));
  std::vector<CudaLearnedCodebook> codebooks;
  for (size_t i = 0; i < arguments.embed.size(); ++i) codebooks.emplace_back(arguments, i, zeros);
  return codebooks;
}

/// The tasks that make(codebook) returns for codebooks from `first` on, as many as fit a launch.
template <typename Make>
auto cuda_tasks(const std::vector<CudaLearnedCodebook>& codebooks, size_t first, const Make& make) {
  learning::Tasks<decltype(make(codebooks[first]))> tasks;
  for (size_t i = first; i < codebooks.size() && !tasks.full(); ++i) tasks.add(make(codebooks[i]));
  return tasks;
}

/// All indices are checked before any codebook changes.
template <typename T>
void cuda_learn(const std::vector<CudaLearnedCodebook>& codebooks, const EmaRules& rules,
                const OnDevice& device) {
  constexpr auto op = "ema_update_tokens_";
  using Codebook = CudaLearnedCodebook;
  const auto codes = [](const Codebook& own) {
    return exponents_task(own.embed, own.totals, own.exponents);
  };
  const auto tokens = [](const Codebook& own) {
    auto task = statistics_task(own.tokens, own.exponents, own.room);
    task.totals = own.totals.const_data_ptr<int64_t>();
    return task;
  };
  const auto averages = [&](const Codebook& own) {
    return own.state.step<T>(own.room, own.weight, rules);
  };
  for (size_t i = 0; i < codebooks.size(); i += learning::kMostTasks)
    check_launch(op, learning::step_statistics(cuda_tasks(codebooks, i, codes),
                                               cuda_tasks(codebooks, i, tokens), device.queue()));
  for (size_t i = 0; i < codebooks.size(); i += learning::kMostTasks)
    check_launch(op, learning::ema_update(cuda_tasks(codebooks, i, averages), device.queue()));
}

bool cuda_alike(at::TensorList tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& tensor) {
    return tensor.scalar_type() == tensors[0].scalar_type();
  });
}

void cuda_ema_update_tokens_(at::TensorList cluster_size, at::TensorList embed_avg,
                             at::TensorList embed, at::TensorList counts, at::TensorList x,
                             at::TensorList indices, at::TensorList mask, double decay, double eps,
                             std::string_view metric, const std::optional<at::Tensor>& weight,
                             bool from_codebook, bool finish) {
  const detail::EmaUpdateTokensArguments arguments{
      cluster_size, embed_avg, embed, counts, x, indices, mask, decay, eps, metric, weight};
  const bool unit = detail::check_ema_update_tokens_(arguments);
  if (embed.empty()) return;
  if (!cuda_alike(embed) || !cuda_alike(x)) {
    any_device_kernel<void>("torchvq::ema_update_tokens_", cluster_size, embed_avg, embed, counts,
                            x, indices, mask, decay, eps, metric, weight, from_codebook, finish);
    return;
  }
  const OnDevice device(embed[0]);
  const auto codebooks = cuda_learned_codebooks(arguments);
  const bool wide = embed[0].scalar_type() == at::kDouble;
  const auto learn = wide ? cuda_learn<double> : cuda_learn<float>;
  learn(codebooks, {decay, eps, unit, from_codebook, finish}, device);
  std::vector<at::Tensor> found;
  for (const auto& own : codebooks) {
    own.state.store();
    found.push_back(own.room.counts);
  }
  at::_foreach_copy_(counts, found);
}

}  // namespace

TORCHVQ_CUDA_KERNEL(ema_update_tokens_, cuda_ema_update_tokens_)

}  // namespace torchvq
