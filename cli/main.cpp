// torchvq: fit a codebook to vectors, turn vectors into codes and back, and measure. See
// docs/cli.md.
#include <torchvq/version.h>

#include <fcntl.h>

#include <CLI/CLI.hpp>
#include <cerrno>

#include "commands.h"
#include "failure.h"
#include "report.h"

namespace torchvq::cli {
namespace {

constexpr auto kProgramFooter = R"(Examples:
  torchvq fit vectors.npy --codebook-size 1024 -o codec.safetensors
  torchvq encode codec.safetensors vectors.npy -o codes.npy
  torchvq decode codec.safetensors codes.npy -o decoded.npy
  torchvq eval codec.safetensors held_out.npy --json
  torchvq inspect codec.safetensors

Vectors are .npy or .safetensors files of shape (..., dim): float16, float32 or float64 (.safetensors: bfloat16
and float8 too). Files larger than memory are streamed. `torchvq COMMAND --help` explains every option.

Exit codes: 0 success, 2 bad input or usage, 1 anything else. Outputs appear complete or not at all.)";

// The user's command determines which help to mention.
std::string help_hint(const CLI::App& program) {
  const auto commands = program.get_subcommands();
  return "torchvq " + (commands.empty() ? "" : commands[0]->get_name() + " ") + "--help";
}

// CLI11 says that a command is required where one is misspelt, too.
std::string words_of(const CLI::App& program, const CLI::ParseError& error) {
  const auto unknown = program.remaining();
  const bool no_command = dynamic_cast<const CLI::RequiredError*>(&error) != nullptr &&
                          program.get_subcommands().empty();
  if (!no_command || unknown.empty()) return error.what();
  std::string commands;
  for (const auto* command : program.get_subcommands([](const CLI::App*) { return true; })) {
    commands += (commands.empty() ? "" : ", ") + command->get_name();
  }
  return "expected a command (" + commands + "), but got " + unknown[0];
}

int parse_failure(CLI::App& program, const CLI::ParseError& error) {
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) {
    // --help and --version arrive as errors of code 0.
    const bool is_version = dynamic_cast<const CLI::CallForVersion*>(&error) != nullptr;
    const auto commands = program.get_subcommands();
    write_output(is_version
                     ? std::string(error.what()) + "\n"
                     : (commands.empty() ? program.help() : commands[0]->help(program.get_name())));
    return kExitOk;
  }
  print_failure(words_of(program, error) + " (see " + help_hint(program) + ")");
  return kExitBadInput;
}

/// A program may be started without standard streams. Whatever it opened first would take their descriptors, and what is
/// written to them would land in its files.
bool has_standard_streams() {
  for (int descriptor = 0; descriptor <= 2; ++descriptor) {
    if (::fcntl(descriptor, F_GETFD) >= 0 || errno != EBADF) continue;
    // Output that nobody can read is still an error.
    if (::open("/dev/null", descriptor == 1 ? O_RDONLY : O_RDWR) < 0) return false;
  }
  return true;
}

int run_program(int argc, char** argv) {
  CLI::App program(
      "Vector quantization: fit a codebook to vectors, turn vectors into codes and back.",
      "torchvq");
  program.set_version_flag("--version", "torchvq " TORCHVQ_VERSION, "Print the version");
  program.set_help_flag("-h,--help", "Print this help");
  program.footer(kProgramFooter);
  program.get_formatter()->column_width(30);
  program.require_subcommand(1);
  Run run;
  add_fit(program, run);
  add_encode(program, run);
  add_decode(program, run);
  add_eval(program, run);
  add_inspect(program, run);
  try {
    program.parse(argc, argv);
    run();
    return kExitOk;
  } catch (const CLI::ParseError& error) {
    return parse_failure(program, error);
  }
}

}  // namespace
}  // namespace torchvq::cli

int main(int argc, char** argv) {
  using namespace torchvq::cli;
  if (!has_standard_streams()) return kExitInternal;
  install_signal_handlers();
  try {
    return run_program(argc, argv);
  } catch (const std::exception& error) {
    return report_failure(error);
  }
}
