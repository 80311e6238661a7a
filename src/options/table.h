// One table per class of options, which converts every option by name from and to text. Python's
// constructors and test programs read these tables, so there is no other list of options.
#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torchvq/options/vqp_compat.h>

#include "options/text.h"

namespace torchvq::detail {

template <typename Options>
struct OptionRow {
  std::string name;
  /// Sets the option. If the text has the wrong kind, returns the expected kind of value.
  std::function<std::string(Options&, const std::string& text)> set;
  std::function<std::string(const Options&)> write;
};

template <typename Options>
using OptionRows = std::vector<OptionRow<Options>>;

template <typename Options>
struct OptionTable {
  const char* owner;  ///< the class, as users call it
  Options defaults;   ///< except for required options
  std::vector<std::string> required;
  OptionRows<Options> rows;
};

/// Defined beside each class's validate(); tables.h declares all.
template <typename Options>
const OptionTable<Options>& option_table();

template <typename T>
std::string set_option_text(T& field, const std::string& text) {
  return OptionText<T>::read(text, field) ? std::string() : OptionText<T>::kind();
}

/// A row, named after the option's accessors.
#define TORCHVQ_OPTION(name)                                        \
  {#name,                                                           \
   [](auto& options, const std::string& text) {                     \
     return torchvq::detail::set_option_text(options.name(), text); \
   },                                                               \
   [](const auto& options) { return torchvq::detail::option_text(options.name()); }}

/// vqp_compat: None takes the value of the environment when options are
/// created, so None is its default.
#define TORCHVQ_COMPAT_OPTION                                                \
  {"vqp_compat",                                                             \
   [](auto& options, const std::string& text) {                              \
     std::optional<bool> value;                                              \
     const auto kind = torchvq::detail::set_option_text(value, text);        \
     if (kind.empty()) {                                                     \
       options.vqp_compat(value.value_or(torchvq::vqp_compat_by_default())); \
     }                                                                       \
     return kind;                                                            \
   },                                                                        \
   [](const auto& /*options*/) { return std::string("None"); }}

/// `rows`, plus the rows of a part of the options whose names are not already used: `part` returns
/// this part of options, const or not. `fixed` lists names that cannot be set.
template <typename Options, typename PartOptions, typename Part>
OptionRows<Options> with_part(OptionRows<Options> rows, const OptionRows<PartOptions>& more,
                              Part part, const std::vector<std::string>& fixed = {},
                              const std::string& prefix = "") {
  const auto taken = [&](const std::string& name) {
    return std::find(fixed.begin(), fixed.end(), name) != fixed.end() ||
           std::any_of(rows.begin(), rows.end(), [&](const auto& row) { return row.name == name; });
  };
  for (const auto& row : more) {
    if (taken(prefix + row.name)) continue;
    rows.push_back({prefix + row.name,
                    [row, part](Options& options, const std::string& text) {
                      return row.set(part(options), text);
                    },
                    [row, part](const Options& options) { return row.write(part(options)); }});
  }
  return rows;
}

}  // namespace torchvq::detail
