// Trains a VQ autoencoder on MNIST or Fashion-MNIST, without Python.
//
//   vqvae [--data FOLDER] [--steps N] [--batch N] [--codebook-size K] [--seed N] [--output FILE]
//
// FOLDER holds train-images-idx3-ubyte and t10k-images-idx3-ubyte, plain or with .gz, as Debian's
// package dataset-fashion-mnist brings them. FILE (vqvae.safetensors) receives the trained model;
// examples/python/demo/model.py loads it, for parameters and buffers have the same names there.
#include <torch/torch.h>
#include <torchvq/io/safetensors.h>
#include <torchvq/modules/vector_quantize.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <numbers>
#include <string>

#include "idx.h"
#include "state.h"
#include "vqvae_model.h"

namespace {

struct Arguments {
  std::string data = "/usr/share/datasets/fashion-mnist";
  std::string output = "vqvae.safetensors";
  int64_t steps = 1200;
  int64_t batch = 64;
  int64_t codebook_size = 512;
  int64_t seed = 0;
};

Arguments parse(int count, char** values) {
  Arguments arguments;
  const std::map<std::string, std::string*> texts{{"--data", &arguments.data},
                                                  {"--output", &arguments.output}};
  const std::map<std::string, int64_t*> numbers{{"--steps", &arguments.steps},
                                                {"--batch", &arguments.batch},
                                                {"--codebook-size", &arguments.codebook_size},
                                                {"--seed", &arguments.seed}};
  for (int at = 1; at < count; at += 2) {
    const std::string name = values[at];
    TORCH_CHECK_VALUE(texts.count(name) + numbers.count(name) == 1 && at + 1 < count,
                      "expected --data, --steps, --batch, --codebook-size, --seed or --output and "
                      "a value, but got ",
                      name);
    if (texts.contains(name)) {
      *texts.at(name) = values[at + 1];
      continue;
    }
    char* end = nullptr;
    const long long number = std::strtoll(values[at + 1], &end, 10);
    TORCH_CHECK_VALUE(*end == 0 && end != values[at + 1] && (number > 0 || name == "--seed"),
                      "expected ", name, " to be a positive number, but got ", values[at + 1]);
    *numbers.at(name) = number;
  }
  return arguments;
}

/// Sums over steps or over a test set, from which the printed figures come.
struct Statistics {
  explicit Statistics(int64_t codebook_size)
      : counts(torch::zeros({codebook_size}, torch::kInt64)) {}

  void add(const torch::Tensor& pictures, const Reconstruction& output) {
    squares += (output.pictures.detach().clamp(0, 1) - pictures).square().sum().item<double>();
    pixels += pictures.numel();
    counts += torch::bincount(output.tokens.flatten(), {}, counts.numel());
  }

  /// In dB, of the mean squared error over all pixels.
  double psnr() const {
    return -10 * std::log10(std::max(squares / static_cast<double>(pixels), 1e-10));
  }

  double used() const { return (counts > 0).to(torch::kFloat64).mean().item<double>(); }

  /// As many codes as, used equally often, would tell as much.
  double perplexity() const {
    const auto share = counts.to(torch::kFloat64) / counts.sum();
    return std::exp(-torch::xlogy(share, share).sum().item<double>());
  }

  double squares = 0;
  int64_t pixels = 0;
  torch::Tensor counts;
};

torch::Tensor to_unit(const torch::Tensor& pictures) { return pictures.to(torch::kFloat32) / 255; }

/// The learning rate: a warm-up, then half a cosine.
double rate_at(int64_t step, int64_t steps) {
  constexpr double peak = 4e-3;
  const int64_t warm_up = std::clamp<int64_t>(steps / 10, 1, 100);
  if (step < warm_up) {
    return peak * static_cast<double>(step + 1) / static_cast<double>(warm_up);
  }
  const double part = static_cast<double>(step - warm_up) /
                      static_cast<double>(std::max<int64_t>(steps - warm_up, 1));
  return peak * (0.02 + 0.98 * 0.5 * (1 + std::cos(std::numbers::pi * part)));
}

void train(VQAutoencoder& model, const torch::Tensor& pictures, const Arguments& arguments) {
  torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(4e-3));
  const double variance =
      to_unit(pictures.slice(0, 0, 4096)).var(/*unbiased=*/false).item<double>();
  const int64_t report_every = std::max<int64_t>(arguments.steps / 20, 1);
  const auto start = std::chrono::steady_clock::now();
  Statistics recent(arguments.codebook_size);
  model->train();
  for (int64_t step = 1; step <= arguments.steps; ++step) {
    static_cast<torch::optim::AdamOptions&>(optimizer.param_groups()[0].options())
        .lr(rate_at(step - 1, arguments.steps));
    const auto chosen = torch::randint(pictures.size(0), {arguments.batch}, torch::kInt64);
    const auto x = to_unit(pictures.index_select(0, chosen));
    const auto output = model(x);
    // In units of the data's variance, so that one learning rate suits dark and bright pictures.
    const auto loss = torch::mse_loss(output.pictures, x) / variance + output.loss;
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    recent.add(x, output);
    if (step % report_every == 0 || step == arguments.steps) {
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
      std::printf(
          "step %5lld of %lld: PSNR %5.2f dB, codes used %3.0f%%, perplexity %5.1f, %.0f s\n",
          static_cast<long long>(step), static_cast<long long>(arguments.steps), recent.psnr(),
          100 * recent.used(), recent.perplexity(), seconds.count());
      std::fflush(stdout);
      recent = Statistics(arguments.codebook_size);
    }
  }
}

Statistics judge(VQAutoencoder& model, const torch::Tensor& pictures, int64_t codebook_size) {
  const torch::NoGradGuard no_grad;
  model->eval();
  Statistics statistics(codebook_size);
  for (const auto& part : pictures.split(250)) {
    const auto x = to_unit(part);
    statistics.add(x, model(x));
  }
  return statistics;
}

void run(const Arguments& arguments) {
  torch::manual_seed(arguments.seed);
  const auto training = read_idx_pictures(arguments.data + "/train-images-idx3-ubyte");
  const auto unseen = read_idx_pictures(arguments.data + "/t10k-images-idx3-ubyte");
  TORCH_CHECK_VALUE(training.size(0) > 0 && unseen.size(0) > 0 && training.size(2) % 4 == 0 &&
                        training.size(3) % 4 == 0 &&
                        training.sizes().slice(1) == unseen.sizes().slice(1),
                    "expected pictures of one size, a multiple of 4, in both files");
  std::printf("%lld pictures to learn from, %lld to judge by, %lld x %lld\n",
              static_cast<long long>(training.size(0)), static_cast<long long>(unseen.size(0)),
              static_cast<long long>(training.size(3)), static_cast<long long>(training.size(2)));

  AutoencoderOptions options;
  options.codebook_size = arguments.codebook_size;
  VQAutoencoder model(options);
  train(model, training, arguments);

  const auto statistics = judge(model, unseen, arguments.codebook_size);
  const auto tokens = static_cast<double>(training.size(2) / 4 * (training.size(3) / 4));
  std::printf("\n  %7.2f dB  PSNR on unseen pictures\n", statistics.psnr());
  std::printf("  %8.1f %%  of %lld codes used\n", 100 * statistics.used(),
              static_cast<long long>(arguments.codebook_size));
  std::printf("  %10.1f  perplexity\n", statistics.perplexity());
  std::printf(
      "  %5.0f bits  per picture, %lld as pixels\n",
      tokens * std::log2(static_cast<double>(std::max<int64_t>(arguments.codebook_size, 2))),
      static_cast<long long>(8 * training.size(2) * training.size(3)));
  torchvq::io::save_safetensors(arguments.output, state_of(*model));
  std::printf("\nThe model: %s\n", arguments.output.c_str());
}

}  // namespace

int main(int count, char** values) {
  try {
    run(parse(count, values));
    return 0;
  } catch (const c10::ValueError& error) {
    std::cerr << "vqvae: " << error.what_without_backtrace() << '\n';
    return 2;
  } catch (const c10::Error& error) {
    std::cerr << "vqvae: " << error.what_without_backtrace() << '\n';
  } catch (const std::exception& error) {
    std::cerr << "vqvae: " << error.what() << '\n';
  }
  return 1;
}
