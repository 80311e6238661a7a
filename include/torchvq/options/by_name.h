// Options by their names, with values as text in the form that Python writes: for configuration
// files, and for the Python classes, whose constructors are checked here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <torchvq/export.h>

namespace torchvq {

/// Sets one option: `True`, `3`, `0.5`, `inf`, `None`, `[8, 5]`, `cosine`. Options of a stack's
/// levels go by their own names (`decay` of a ResidualVQOptions is that of its levels), those of
/// mlp_kwargs by `mlp_kwargs.depth`. Modules and optimizers have no text: anything but `None` puts
/// a placeholder there, for check_options() alone.
///
/// @tparam Options  the options of any class, ResidualVQOptions for one.
/// @return  whether there is an option of that name.
/// Throws c10::TypeError for text of the wrong kind.
/// Example: `set_option(options, "decay", "0.9")`
template <typename Options>
TORCHVQ_API bool set_option(Options& options, const std::string& name, const std::string& text);

/// Checks the options of a class as its constructor does; those not named have their defaults.
///
/// @param owner   the class, "VectorQuantize" for one.
/// @param values  one for each name.
/// @return  what open options resolve to: for VectorQuantize rotation_trick, ema_update and
///          learnable_codebook as 0 or 1, for ResidualVQ the codebook size of every level,
///          otherwise nothing.
/// Throws c10::ValueError for an option out of range, options that exclude each other, and a class
/// that is none; c10::TypeError for a value of the wrong kind, a name that is none, and an option
/// that is missing.
TORCHVQ_API std::vector<int64_t> check_options(const std::string& owner,
                                               const std::vector<std::string>& names,
                                               const std::vector<std::string>& values);

/// The options of a class, "decay=0.8" with its default for each, "dim" where one must be given.
TORCHVQ_API std::vector<std::string> list_options(const std::string& owner);

}  // namespace torchvq
