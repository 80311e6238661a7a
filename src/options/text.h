// Options as text, in the form that Python writes them: True, 3, 0.5, None, [8, 5], cosine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace torchvq::detail {

/// Conversion of an option of type T from and to text:
///   kind()             the name of its values in errors
///   read(text, field)  sets the field, or returns false and leaves it alone if the text is of
///                      another kind
///   write(field)       the inverse
template <typename T>
struct OptionText;

template <>
struct OptionText<bool> {
  static std::string kind() { return "True or False"; }
  static bool read(const std::string& text, bool& field);
  static std::string write(bool value) { return value ? "True" : "False"; }
};

template <>
struct OptionText<int64_t> {
  static std::string kind() { return "an integer of 64 bits"; }
  static bool read(const std::string& text, int64_t& field);
  static std::string write(int64_t value) { return std::to_string(value); }
};

template <>
struct OptionText<double> {
  static std::string kind() { return "a number"; }
  static bool read(const std::string& text, double& field);
  static std::string write(double value);
};

/// With or without single quotes. Python quotes its strings, so that "False" is not False.
template <>
struct OptionText<std::string> {
  static std::string kind() { return "a name"; }
  static bool read(const std::string& text, std::string& field);
  static std::string write(const std::string& value) { return value; }
};

template <>
struct OptionText<std::vector<int64_t>> {
  static std::string kind() { return "a list of integers"; }
  static bool read(const std::string& text, std::vector<int64_t>& field);
  static std::string write(const std::vector<int64_t>& values);
};

/// If a list is expected, a single number is a list of one.
template <>
struct OptionText<std::vector<double>> {
  static std::string kind() { return "a number or a list of them"; }
  static bool read(const std::string& text, std::vector<double>& field);
  static std::string write(const std::vector<double>& values);
};

template <typename T>
struct OptionText<std::optional<T>> {
  static std::string kind() { return OptionText<T>::kind() + " or None"; }
  static bool read(const std::string& text, std::optional<T>& field) {
    if (text == "None") {
      field.reset();
      return true;
    }
    T value{};
    if (!OptionText<T>::read(text, value)) return false;
    field = std::move(value);
    return true;
  }
  static std::string write(const std::optional<T>& value) {
    return value ? OptionText<T>::write(*value) : "None";
  }
};

/// The words of "[a, b]" or "(a, b)", with an optional trailing comma; empty for other text.
std::optional<std::vector<std::string>> split_list(const std::string& text);
/// The inverse.
std::string join_list(const std::vector<std::string>& words);

template <typename T>
std::string option_text(const T& value) {
  return OptionText<T>::write(value);
}
inline std::string option_text(const char* words) { return words; }

}  // namespace torchvq::detail
