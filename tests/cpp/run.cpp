// Runs the C++ side of a comparison in a Python test.
//
//   torchvq_run fsq IN OUT levels=8,5,5 [device=cuda] [option=value ...]      also evo_lfq, lfq, residual_vq, ...
//   torchvq_run convert IN OUT [IN OUT ...]
//   torchvq_run serve      reads arguments of such runs from standard input, prints their statuses
#include "run.h"

#include <sys/wait.h>
#include <unistd.h>

#include <exception>
#include <iostream>
#include <sstream>

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

namespace torchvq::testing {
namespace {

using RunModule = void (*)(const std::string& from, const std::string& to, const Words& words);

const std::map<std::string, RunModule> kModules{
    {"evo_lfq", run_evo_lfq},
    {"fsq", run_fsq},
    {"hierarchical_vq", run_hierarchical_vq},
    {"lfq", run_lfq},
    {"residual_vq", run_residual_vq},
    {"scalar", run_scalar},
    {"sim_vq", run_sim_vq},
    {"vector_quantize", run_vector_quantize},
};

void run(const std::string& name, const std::vector<std::string>& arguments) {
  if (name == "convert") {
    convert_files(arguments);
    return;
  }
  TORCH_CHECK_VALUE(kModules.contains(name), "torchvq_run: no such module: ", name);
  TORCH_CHECK_VALUE(arguments.size() >= 2, "torchvq_run: expected IN and OUT");
  Words words;
  for (size_t index = 2; index < arguments.size(); ++index) {
    const auto& argument = arguments[index];
    const auto split = argument.find('=');
    words[argument.substr(0, split)] = argument.substr(split + 1);
  }
  if (const auto device = words.extract("device")) run_device() = c10::Device(device.mapped());
  kModules.at(name)(arguments[0], arguments[1], words);
}

int run_or_say(const std::vector<std::string>& arguments) {
  try {
    TORCH_CHECK_VALUE(!arguments.empty(), "torchvq_run: expected a name");
    run(arguments[0], {arguments.begin() + 1, arguments.end()});
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}

std::vector<std::string> split_at_tabs(const std::string& line) {
  std::vector<std::string> words;
  std::istringstream stream(line);
  for (std::string word; std::getline(stream, word, '\t');) words.push_back(word);
  return words;
}

// Loading libtorch takes longer than most runs, so each run is a fork of this process, which has
// only loaded it. A line has the file for standard error and the arguments, separated by tabs; the
// answer is the status.
int serve() {
  for (std::string line; std::getline(std::cin, line);) {
    auto words = split_at_tabs(line);
    const auto child = fork();
    if (child == 0) {
      if (!std::freopen(words.at(0).c_str(), "w", stderr)) _exit(2);
      words.erase(words.begin());
      const auto status = run_or_say(words);
      std::cerr.flush();
      _exit(status);
    }
    int status = 0;
    waitpid(child, &status, 0);
    std::cout << (WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status)) << '\n'
              << std::flush;
  }
  return 0;
}

}  // namespace

c10::Device& run_device() {
  static c10::Device device(c10::kCPU);
  return device;
}

}  // namespace torchvq::testing

int main(int argc, char** argv) {
  at::set_num_threads(1);
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments == std::vector<std::string>{"serve"}) return torchvq::testing::serve();
  return torchvq::testing::run_or_say(arguments);
}
