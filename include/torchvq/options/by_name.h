// Options by name, with values as Python prints them: for configuration files, and for the
// constructors of the Python classes, which are checked here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <torchvq/export.h>

namespace torchvq {

/// Sets one option: `True`, `3`, `0.5`, `inf`, `None`, `[8, 5]`, `cosine`. Options of a stack's
/// levels have their own names (`decay` of a ResidualVQOptions is that of its levels), those of
/// mlp_kwargs are `mlp_kwargs.depth` and so on. Modules and optimizers have no text form: any value
/// but `None` sets a placeholder, for check_options() only.
///
/// @tparam Options  the options of any class, for example ResidualVQOptions.
/// @return  whether an option of that name exists.
/// Throws c10::TypeError for text of the wrong kind.
/// Example: `set_option(options, "decay", "0.9")`
template <typename Options>
TORCHVQ_API bool set_option(Options& options, const std::string& name, const std::string& text);

/// Checks the options of a class as its constructor does; options not named have their defaults.
///
/// @param owner   the class, for example "VectorQuantize".
/// @param values  one for each name.
/// @return  the values of options whose default depends on others: for VectorQuantize
///          rotation_trick, ema_update and learnable_codebook as 0 or 1, for ResidualVQ the
///          codebook size of every level, for HierarchicalVQ the number of codes of each scale, then
///          the grid of each scale, then its convolution, otherwise nothing.
/// Throws c10::ValueError for an option out of range, options that exclude each other, and an
/// unknown class; c10::TypeError for a value of the wrong kind, an unknown option, and a missing
/// option.
TORCHVQ_API std::vector<int64_t> check_options(const std::string& owner,
                                               const std::vector<std::string>& names,
                                               const std::vector<std::string>& values);

/// The options of a class with their defaults, as "decay=0.8"; only the name ("dim") if the option
/// is required.
TORCHVQ_API std::vector<std::string> list_options(const std::string& owner);

}  // namespace torchvq
