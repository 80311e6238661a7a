#include "options/text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <system_error>

namespace torchvq::detail {
namespace {

// The longest texts are fixed-point numbers just below kScientificFrom, and subnormal
// numbers with all digits.
constexpr size_t kNumberLength = 64;
// Outside of this range Python writes exponents.
constexpr double kScientificFrom = 1e16, kScientificBelow = 1e-4;

template <typename T>
bool read_number(const std::string& text, T& field) {
  T value{};
  const char* const end = text.data() + text.size();
  const auto [next, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || next != end) return false;
  field = value;
  return true;
}

std::string without_spaces(const std::string& text) {
  const auto first = text.find_first_not_of(' ');
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(' ') - first + 1);
}

template <typename T>
bool read_list(const std::string& text, std::vector<T>& field) {
  const auto words = split_list(text);
  if (!words) return false;
  std::vector<T> values(words->size());
  for (size_t index = 0; index < values.size(); ++index) {
    if (!read_number((*words)[index], values[index])) return false;
  }
  field = std::move(values);
  return true;
}

template <typename T>
std::string write_list(const std::vector<T>& values) {
  std::vector<std::string> words;
  words.reserve(values.size());
  for (const auto& value : values) words.push_back(OptionText<T>::write(value));
  return join_list(words);
}

}  // namespace

std::optional<std::vector<std::string>> split_list(const std::string& text) {
  if (text.size() < 2) return std::nullopt;
  const bool list = text.front() == '[' && text.back() == ']';
  if (!list && !(text.front() == '(' && text.back() == ')')) return std::nullopt;
  std::vector<std::string> words;
  const auto inside = without_spaces(text.substr(1, text.size() - 2));
  for (size_t begin = 0; begin < inside.size();) {
    const auto end = std::min(inside.find(',', begin), inside.size());
    words.push_back(without_spaces(inside.substr(begin, end - begin)));
    begin = end + 1;
  }
  return words;
}

std::string join_list(const std::vector<std::string>& words) {
  std::string text = "[";
  for (const auto& word : words) {
    if (text.size() > 1) text += ", ";
    text += word;
  }
  return text + "]";
}

bool OptionText<bool>::read(const std::string& text, bool& field) {
  const bool set = text == "True" || text == "1";
  if (!set && text != "False" && text != "0") return false;
  field = set;
  return true;
}

bool OptionText<int64_t>::read(const std::string& text, int64_t& field) {
  return read_number(text, field);
}

bool OptionText<double>::read(const std::string& text, double& field) {
  return read_number(text, field);
}

std::string OptionText<double>::write(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  const double size = std::abs(value);
  const bool fixed = size == 0 || (size >= kScientificBelow && size < kScientificFrom);
  std::array<char, kNumberLength> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value,
                                 fixed ? std::chars_format::fixed : std::chars_format::scientific);
  std::string text(digits.data(), end.ptr);
  return fixed && text.find('.') == std::string::npos ? text + ".0" : text;
}

bool OptionText<std::string>::read(const std::string& text, std::string& field) {
  if (text == "None") return false;
  const bool quoted = text.size() > 1 && text.front() == '\'' && text.back() == '\'';
  field = quoted ? text.substr(1, text.size() - 2) : text;
  return true;
}

bool OptionText<std::vector<int64_t>>::read(const std::string& text, std::vector<int64_t>& field) {
  return read_list(text, field);
}

std::string OptionText<std::vector<int64_t>>::write(const std::vector<int64_t>& values) {
  return write_list(values);
}

bool OptionText<std::vector<double>>::read(const std::string& text, std::vector<double>& field) {
  double value = 0;
  if (!read_number(text, value)) return read_list(text, field);
  field = {value};
  return true;
}

std::string OptionText<std::vector<double>>::write(const std::vector<double>& values) {
  return write_list(values);
}

}  // namespace torchvq::detail
