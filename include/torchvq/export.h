// Marks what libtorchvq shows to its users; everything else is hidden.
//
// Written by hand and not generated: a generated header lies in the build tree, its path enters
// every preprocessed file, and ccache could then not share objects between build trees.
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
