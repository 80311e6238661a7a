#include <torchvq/options/by_name.h>

#include <algorithm>
#include <map>
#include <utility>

#include <c10/util/Exception.h>
#include <torch/library.h>

#include "options/tables.h"

namespace torchvq {
namespace {

// What open options resolve to --------------------------------------------------------------------

template <typename Options>
std::vector<int64_t> resolved(const Options& options) {
  options.validate();
  return {};
}

std::vector<int64_t> resolved(const VectorQuantizeOptions& options) {
  const auto found = options.validate();
  return {static_cast<int64_t>(found.rotation_trick), static_cast<int64_t>(found.ema_update),
          static_cast<int64_t>(found.learnable_codebook)};
}

std::vector<int64_t> resolved(const ResidualVQOptions& options) { return options.validate(); }

/// Codes of each scale, then the grid of each scale, then its convolution.
std::vector<int64_t> resolved(const HierarchicalVQOptions& options) {
  const auto found = options.validate();
  auto numbers = found.sizes;
  for (const auto& shape : found.shapes) numbers.insert(numbers.end(), shape.begin(), shape.end());
  const auto& convolutions = found.convolutions;
  numbers.insert(numbers.end(), convolutions.begin(), convolutions.end());
  return numbers;
}

// A class -----------------------------------------------------------------------------------------

template <typename Table>
std::string names_of(const Table& table) {
  std::string names;
  for (const auto& row : table.rows) names += (names.empty() ? "" : ", ") + row.name;
  return names;
}

template <typename Options>
std::vector<int64_t> check_class(const std::vector<std::string>& names,
                                 const std::vector<std::string>& values) {
  const auto& table = detail::option_table<Options>();
  auto options = table.defaults;
  for (size_t index = 0; index < names.size(); ++index) {
    TORCH_CHECK_TYPE(set_option(options, names[index], values[index]), table.owner,
                     ": expected options to be of ", names_of(table), ", but got ", names[index]);
  }
  for (const auto& name : table.required) {
    TORCH_CHECK_TYPE(std::find(names.begin(), names.end(), name) != names.end(), table.owner,
                     ": expected ", name, " to be given, but got none");
  }
  return resolved(options);
}

template <typename Options>
std::vector<std::string> list_class() {
  const auto& table = detail::option_table<Options>();
  std::vector<std::string> lines;
  for (const auto& row : table.rows) {
    const auto& needed = table.required;
    const bool open = std::find(needed.begin(), needed.end(), row.name) == needed.end();
    lines.push_back(open ? row.name + "=" + row.write(table.defaults) : row.name);
  }
  return lines;
}

// All classes -------------------------------------------------------------------------------------

struct ClassByName {
  decltype(&check_class<VectorQuantizeOptions>) check;
  decltype(&list_class<VectorQuantizeOptions>) list;
};

template <typename... Options>
std::map<std::string, ClassByName> classes_of() {
  return {{detail::option_table<Options>().owner,
           ClassByName{&check_class<Options>, &list_class<Options>}}...};
}

const ClassByName& class_by_name(const char* function, const std::string& owner) {
  static const auto classes =
      classes_of<BinaryMapperOptions, EvoLFQOptions, FSPOptions, FSQOptions, HierarchicalVQOptions,
                 LatentQuantizeOptions, LFQOptions, RandomProjectionQuantizerOptions,
                 ResidualFSQOptions, GroupedResidualFSQOptions, ResidualLFQOptions,
                 GroupedResidualLFQOptions, ResidualVQOptions, GroupedResidualVQOptions,
                 ResidualSimVQOptions, SimVQOptions, VectorQuantizeOptions>();
  const auto found = classes.find(owner);
  TORCH_CHECK_VALUE(found != classes.end(), function,
                    ": expected name to be that of a quantizer class, but got ", owner);
  return found->second;
}

}  // namespace

template <typename Options>
bool set_option(Options& options, const std::string& name, const std::string& text) {
  const auto& table = detail::option_table<Options>();
  const auto row = std::find_if(table.rows.begin(), table.rows.end(),
                                [&](const auto& each) { return each.name == name; });
  if (row == table.rows.end()) return false;
  const auto kind = row->set(options, text);
  TORCH_CHECK_TYPE(kind.empty(), table.owner, ": expected ", name, " to be ", kind, ", but got ",
                   text);
  return true;
}

template TORCHVQ_API bool set_option(RandomProjectionQuantizerOptions&, const std::string&,
                                     const std::string&);
template TORCHVQ_API bool set_option(ResidualSimVQOptions&, const std::string&, const std::string&);
template TORCHVQ_API bool set_option(SimVQOptions&, const std::string&, const std::string&);
template TORCHVQ_API bool set_option(BinaryMapperOptions&, const std::string&, const std::string&);
template TORCHVQ_API bool set_option(EvoLFQOptions&, const std::string&, const std::string&);
template TORCHVQ_API bool set_option(FSPOptions&, const std::string&, const std::string&);
template TORCHVQ_API bool set_option(FSQOptions&, const std::string&, const std::string&);
template TORCHVQ_API bool set_option(HierarchicalVQOptions&, const std::string&,
                                     const std::string&);
template TORCHVQ_API bool set_option(LatentQuantizeOptions&, const std::string&,
                                     const std::string&);
template TORCHVQ_API bool set_option(LFQOptions&, const std::string&, const std::string&);
template TORCHVQ_API bool set_option(ResidualFSQOptions&, const std::string&, const std::string&);
template TORCHVQ_API bool set_option(GroupedResidualFSQOptions&, const std::string&,
                                     const std::string&);
template TORCHVQ_API bool set_option(ResidualLFQOptions&, const std::string&, const std::string&);
template TORCHVQ_API bool set_option(GroupedResidualLFQOptions&, const std::string&,
                                     const std::string&);
template TORCHVQ_API bool set_option(ResidualVQOptions&, const std::string&, const std::string&);
template TORCHVQ_API bool set_option(GroupedResidualVQOptions&, const std::string&,
                                     const std::string&);
template TORCHVQ_API bool set_option(VectorQuantizeOptions&, const std::string&,
                                     const std::string&);

std::vector<int64_t> check_options(const std::string& owner, const std::vector<std::string>& names,
                                   const std::vector<std::string>& values) {
  const auto& known = class_by_name("check_options", owner);
  TORCH_CHECK_VALUE(names.size() == values.size(), "check_options: expected values to be ",
                    names.size(), ", one for each name, but got ", values.size());
  return known.check(names, values);
}

std::vector<std::string> list_options(const std::string& owner) {
  return class_by_name("list_options", owner).list();
}

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def("check_options(str name, str[] names, str[] values) -> int[]",
        [](const std::string& name, const std::vector<std::string>& names,
           const std::vector<std::string>& values) {
          return torchvq::check_options(name, names, values);
        });
  m.def("list_options(str name) -> str[]",
        [](const std::string& name) { return torchvq::list_options(name); });
}
