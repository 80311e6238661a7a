// Runs a model that Python has packaged, without Python: vectors to tokens, or tokens to vectors.
//
//   serve PACKAGE.pt2 INPUT OUTPUT.npy
//
// PACKAGE.pt2 is what torch._inductor.aoti_compile_and_package has written of a model with one
// input and one output, such as encode.pt2 and decode.pt2 of examples/python/export_tokenizer.py.
// INPUT is a .npy file, or a .safetensors file that holds one tensor.
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/torch.h>
#include <torchvq/io/npy.h>
#include <torchvq/io/safetensors.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>

namespace {

// In C order, as the input that the package was exported with; a .npy file may be in Fortran order.
torch::Tensor load(const std::string& path) {
  const auto extension = std::filesystem::path(path).extension();
  if (extension == ".npy") return torchvq::io::load_npy(path).contiguous();
  TORCH_CHECK_VALUE(extension == ".safetensors",
                    "expected INPUT to end in .npy or .safetensors, but got ", path);
  const torchvq::io::SafetensorsFile file(path);
  TORCH_CHECK_VALUE(file.entries().size() == 1, "expected ", path, " to hold one tensor, but got ",
                    file.entries().size());
  return file.tensor(file.entries().begin()->first);
}

void serve(const std::string& package, const std::string& input, const std::string& output) {
  const torch::NoGradGuard no_grad;
  TORCH_CHECK_VALUE(std::filesystem::is_regular_file(package),
                    "expected PACKAGE to be a file, but got ", package);
  // A package that calls operators of torchvq finds them registered, because this program is linked
  // with the library; without it, loading or the first run fails with the name of the operator.
  torch::inductor::AOTIModelPackageLoader model(package);
  const auto x = load(input);

  const auto start = std::chrono::steady_clock::now();
  const auto results = model.run({x});
  const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - start;

  TORCH_CHECK_VALUE(results.size() == 1, "expected ", package, " to have one output, but got ",
                    results.size());
  torchvq::io::save_npy(output, results[0]);
  std::cout << "served " << x.sizes() << " to " << results[0].sizes() << " in " << time.count()
            << " ms\n";
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 4) {
    std::fputs("usage: serve PACKAGE.pt2 INPUT OUTPUT.npy\n", stderr);
    return 2;
  }
  // Generated code trusts its inputs otherwise: other sizes or strides than the exported ones read
  // foreign memory.
  setenv("AOTI_RUNTIME_CHECK_INPUTS", "1", /*overwrite=*/0);
  try {
    serve(arguments[1], arguments[2], arguments[3]);
    return 0;
  } catch (const c10::Error& error) {
    std::cerr << "serve: " << error.what_without_backtrace() << '\n';
  } catch (const std::exception& error) {
    // What fails inside a package comes as text, with the backtrace behind the first line.
    const std::string words = error.what();
    std::cerr << "serve: " << words.substr(0, words.find('\n')) << '\n';
  }
  return 1;
}
