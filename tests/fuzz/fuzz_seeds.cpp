// fuzz_seeds FOLDER: writes small valid files of every kind, which the fuzzers damage.
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <torchvq/io/codec.h>
#include <torchvq/io/npy.h>
#include <torchvq/io/projected_codec.h>
#include <torchvq/io/safetensors.h>
#include <torchvq/io/scalar_codec.h>

#include <cstdio>
#include <string>

namespace {

namespace io = torchvq::io;

void write_arrays(const std::string& folder) {
  io::save_npy(folder + "/floats.npy", at::arange(12, at::kFloat).view({3, 4}));
  io::save_npy(folder + "/codes.npy", at::arange(6).view({2, 3}));
  io::save_safetensors(
      folder + "/tensors.safetensors",
      {{"a", at::arange(12, at::kFloat).view({3, 4})}, {"b", at::arange(3, at::kHalf)}},
      {{"key", "value"}});
}

void write_codecs(const std::string& folder) {
  const auto codec =
      io::make_codec(at::arange(6, at::kFloat).view({3, 2}), at::arange(3), "euclidean");
  io::save_codec(folder + "/codec.safetensors", codec);
  io::save_codec_stack(folder + "/stack.safetensors", {.groups = {{codec, codec}, {codec, codec}}});
  for (const auto* method : {"fsq", "lfq"}) {
    torchvq::fit::ScalarCodec scalar;
    scalar.method = method;
    scalar.levels = {2, 2};
    scalar.dim = 3;
    scalar.in_weight = at::ones({2, 3});
    scalar.in_bias = at::ones({2});
    scalar.out_weight = at::ones({3, 2});
    scalar.out_bias = at::ones({3});
    io::OutputFile file(folder + "/" + method + ".safetensors");
    io::save_scalar_codec(file, scalar);
  }
}

/// For vectors of three features: a stack without maps, and one with every possible map.
void write_projected_codec(const std::string& folder) {
  const auto map = [](int64_t out, int64_t in) {
    return torchvq::fit::Projection{at::ones({out, in}), at::ones({out})};
  };
  const auto codes = [](int64_t dim) { return at::arange(2 * dim, at::kFloat).view({2, dim}); };
  torchvq::fit::ProjectedCodec codec;
  codec.metric = "euclidean";
  codec.dim = 3;
  codec.stacks = {{{}, {{{}, codes(3), {}}, {{}, codes(3), {}}}, {}},
                  {map(2, 3), {{map(1, 2), codes(1), map(2, 1)}}, map(3, 2)}};
  io::save_projected_codec(folder + "/projected.safetensors", codec);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: fuzz_seeds FOLDER\n");
    return 2;
  }
  write_arrays(argv[1]);
  write_codecs(argv[1]);
  write_projected_codec(argv[1]);
  return 0;
}
