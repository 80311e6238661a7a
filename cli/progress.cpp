#include "progress.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <utility>

namespace torchvq::cli {
namespace {

using namespace std::chrono_literals;

constexpr auto kRedraw = 100ms;
constexpr auto kPlainLine = 5s;
constexpr size_t kBarWidth = 24;

template <typename... Args>
std::string format(const char* pattern, Args... args) {
  std::array<char, 160> text{};
  std::snprintf(text.data(), text.size(), pattern, args...);
  return text.data();
}

// 1234567 -> "1.23M"
std::string short_number(double value) {
  for (const auto& [factor, unit] : {std::pair{1e9, "G"}, {1e6, "M"}, {1e3, "k"}}) {
    if (value >= factor) return format("%.3g%s", value / factor, unit);
  }
  return format("%.3g", value);
}

std::string clock_time(double seconds) {
  const auto whole = std::llround(seconds);
  if (whole >= 3600) return format("%lld:%02lld:%02lld", whole / 3600, whole / 60 % 60, whole % 60);
  return format("%lld:%02lld", whole / 60, whole % 60);
}

std::string bar(double fraction) {
  const auto filled = static_cast<size_t>(fraction * kBarWidth);
  std::string text = "[";
  text.append(filled, '#').append(kBarWidth - filled, '.');
  return text += ']';
}

}  // namespace

Progress::Progress(std::string label, int64_t total, bool quiet)
    : label_(std::move(label)),
      total_(total),
      terminal_(::isatty(STDERR_FILENO) == 1),
      quiet_(quiet) {}

Progress::~Progress() {
  if (drawn_) std::fputs("\r\x1b[K", stderr);
}

double Progress::seconds() const {
  return std::chrono::duration<double>(Clock::now() - start_).count();
}

std::string Progress::line() const {
  const double fraction =
      total_ == 0 ? 1 : std::min(1.0, static_cast<double>(done_) / static_cast<double>(total_));
  const double elapsed = seconds();
  const double rate = elapsed > 0 ? static_cast<double>(done_) / elapsed : 0;
  std::string text = label_;
  if (!note_.empty()) text.append(" ").append(note_);
  if (terminal_) text.append(" ").append(bar(fraction));
  text += format(" %3.0f%%", 100 * fraction);
  text += ", " + short_number(rate) + " vectors/s";
  const double left = rate > 0 ? static_cast<double>(total_ - done_) / rate : 0;
  return text + (fraction < 1 ? ", " + clock_time(left) + " left"
                              : ", " + clock_time(elapsed) + " in all");
}

void Progress::draw() {
  shown_ = Clock::now();
  drawn_ = terminal_;
  std::fprintf(stderr, terminal_ ? "\r\x1b[K%s" : "%s\n", line().c_str());
  std::fflush(stderr);
}

void Progress::update(int64_t done, const std::string& note) {
  done_ = done;
  note_ = note;
  if (quiet_) return;
  const auto since = Clock::now() - shown_;
  if (terminal_ ? since >= kRedraw : since >= kPlainLine) draw();
}

void Progress::finish() {
  // Work may end early (a converged codebook): the rate is that of the completed work.
  total_ = done_;
  note_.clear();
  const bool was_long = terminal_ ? drawn_ : Clock::now() - start_ >= kPlainLine;
  if (quiet_ || !was_long) return;
  draw();
  if (terminal_) std::fputs("\n", stderr);
  drawn_ = false;
}

}  // namespace torchvq::cli
