// The commands. Each adds its options to the program; `run` executes it after parsing.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace torchvq::cli {

using Run = std::function<void()>;

void add_fit(CLI::App& program, Run& run);
void add_encode(CLI::App& program, Run& run);
void add_decode(CLI::App& program, Run& run);
void add_eval(CLI::App& program, Run& run);
void add_inspect(CLI::App& program, Run& run);

}  // namespace torchvq::cli
