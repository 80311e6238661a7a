// Marks the symbols that libtorchvq exports; all others are hidden.
//
// The header is written by hand: the path of a generated header in the build tree would enter every
// preprocessed file, and ccache could not share objects between build trees.
#pragma once

#ifdef _WIN32
#ifdef torchvq_EXPORTS
#define TORCHVQ_API __declspec(dllexport)
#else
#define TORCHVQ_API __declspec(dllimport)
#endif
#else
#define TORCHVQ_API __attribute__((visibility("default")))
#endif
