// Progress of a command, on standard error.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace torchvq::cli {

/// On a terminal, one line that redraws itself, with rate and time left; elsewhere a plain line
/// every few seconds, and one at the end of long work. The destructor clears an unfinished line, so
/// that an error message starts on a line of its own.
class Progress {
 public:
  /// @param total  vectors to process, all passes together.
  Progress(std::string label, int64_t total, bool quiet);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// @param note  the current work, for example "pass 3/25"; may be empty.
  void update(int64_t done, const std::string& note = "");
  void finish();

 private:
  using Clock = std::chrono::steady_clock;

  double seconds() const;
  std::string line() const;
  void draw();

  std::string label_;
  std::string note_;
  int64_t total_;
  int64_t done_ = 0;
  bool terminal_;
  bool quiet_;
  bool drawn_ = false;
  Clock::time_point start_ = Clock::now();
  Clock::time_point shown_ = start_;
};

}  // namespace torchvq::cli
