// A residual quantizer from nothing: trains it on vectors, saves it, and decodes tokens with a
// second one that has read the file, as a player would.
//
//   residual_vq [FILE]
//
// FILE (default residual_vq.safetensors) holds the state under the names that it has in Python:
// ResidualVQ(dim=32, num_quantizers=4, codebook_size=64).load_state_dict(load_file(FILE)) goes on
// with it.
#include <torch/torch.h>
#include <torchvq/torchvq.h>

#include <cstdio>
#include <exception>
#include <map>
#include <string>

namespace {

constexpr int64_t kDim = 32;
constexpr int kSteps = 200;

torchvq::ResidualVQOptions options() {
  auto chosen = torchvq::ResidualVQOptions(kDim).num_quantizers(4).codebook_size(64);
  chosen.vq().kmeans_init(true).decay(0.98).threshold_ema_dead_code(1);
  return chosen;
}

/// Vectors around 200 centres: something that codes can learn.
torch::Tensor draw(int64_t count) {
  static const auto centres = torch::randn({200, kDim}) * 2;
  return centres.index({torch::randint(200, {count})}) + torch::randn({count, kDim}) * 0.3;
}

double share_lost(const torch::Tensor& x, const torch::Tensor& output) {
  return ((x - output).square().sum() / x.square().sum()).item<double>();
}

/// On vectors that training has not seen: those of the first batch made the codes, and flatter
/// them.
double lost_on(torchvq::ResidualVQ& quantizer, const torch::Tensor& unseen) {
  const torch::NoGradGuard no_grad;
  quantizer->eval();
  const auto output = quantizer(unseen);
  quantizer->train();
  return share_lost(unseen, output.quantized);
}

void train(torchvq::ResidualVQ& quantizer, const torch::Tensor& unseen) {
  for (int step = 1; step <= kSteps; ++step) {
    quantizer(draw(1024).unsqueeze(0));  // the codebooks learn by moving averages
    if (step == 1 || step % 50 == 0) {
      std::printf("step %3d   lost %.4f of the variance\n", step, lost_on(quantizer, unseen));
    }
  }
}

torchvq::ResidualVQ load(const std::string& file_name) {
  const torchvq::io::SafetensorsFile file(file_name);
  std::map<std::string, torch::Tensor> state;
  for (const auto& [name, entry] : file.entries()) state[name] = file.tensor(name);
  torchvq::ResidualVQ quantizer(options());
  torchvq::load_state_dict(*quantizer, state);
  quantizer->eval();
  return quantizer;
}

void run(const std::string& file_name) {
  torch::manual_seed(0);
  torchvq::ResidualVQ quantizer(options());
  const auto unseen = draw(4096).unsqueeze(0);
  train(quantizer, unseen);
  torchvq::io::save_safetensors(file_name, torchvq::state_dict(*quantizer));

  const torch::NoGradGuard no_grad;
  quantizer->eval();
  const auto greedy = quantizer(unseen);
  const auto beam = quantizer(unseen, torchvq::ResidualVQForwardOptions().beam_size(8));
  auto player = load(file_name);
  const auto decoded = player->get_output_from_indices(greedy.indices);
  std::printf("unseen     lost %.4f, with a beam of 8 %.4f\n", share_lost(unseen, greedy.quantized),
              share_lost(unseen, beam.quantized));
  std::printf("decoded    %s\n", torch::equal(decoded, greedy.quantized)
                                     ? "the tokens of the file's quantizer, bit for bit"
                                     : "something else");
  std::printf("wrote      %s\n", file_name.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(argc > 1 ? argv[1] : "residual_vq.safetensors");
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "residual_vq: %s\n", error.what_without_backtrace());
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "residual_vq: %s\n", error.what());
    return 1;
  }
  return 0;
}
