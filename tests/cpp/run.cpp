// Runs the C++ side of a comparison that a Python test makes.
//
//   torchvq_run fsq IN OUT levels=8,5,5 [option=value ...]      also evo_lfq, lfq, residual_vq, ...
//   torchvq_run convert IN OUT [IN OUT ...]
#include "run.h"

#include <exception>
#include <iostream>

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

namespace torchvq::testing {
namespace {

using RunModule = void (*)(const std::string& from, const std::string& to, const Words& words);

const std::map<std::string, RunModule> kModules{
    {"evo_lfq", run_evo_lfq}, {"fsq", run_fsq},
    {"lfq", run_lfq},         {"residual_vq", run_residual_vq},
    {"scalar", run_scalar},   {"vector_quantize", run_vector_quantize},
};

void run(const std::string& name, const std::vector<std::string>& arguments) {
  if (name == "convert") return convert_files(arguments);
  TORCH_CHECK_VALUE(kModules.contains(name), "torchvq_run: no such module: ", name);
  TORCH_CHECK_VALUE(arguments.size() >= 2, "torchvq_run: expected IN and OUT");
  Words words;
  for (size_t index = 2; index < arguments.size(); ++index) {
    const auto& argument = arguments[index];
    const auto split = argument.find('=');
    words[argument.substr(0, split)] = argument.substr(split + 1);
  }
  kModules.at(name)(arguments[0], arguments[1], words);
}

}  // namespace
}  // namespace torchvq::testing

int main(int argc, char** argv) {
  at::set_num_threads(1);
  try {
    const std::vector<std::string> arguments(argv + 1, argv + argc);
    TORCH_CHECK_VALUE(!arguments.empty(), "torchvq_run: expected a name");
    torchvq::testing::run(arguments[0], {arguments.begin() + 1, arguments.end()});
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
