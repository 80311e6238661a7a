// Replaces gloo_group.cpp if the headers of Gloo are not available.
#include <c10/util/Exception.h>

#include "gloo_group.h"

namespace torchvq::cli {

struct GlooGroup::Impl {};

GlooGroup::GlooGroup(const Rendezvous& rendezvous) {
  C10_THROW_ERROR(
      ValueError,
      c10::str("expected one process, but got WORLD_SIZE=", rendezvous.size,
               ": this program was built without the headers of Gloo (Debian: libgloo-dev)"));
}

GlooGroup::~GlooGroup() = default;

void GlooGroup::tell_failure() noexcept {}

bool GlooGroup::heard_failure() noexcept { return false; }

const std::string& GlooGroup::name() const {
  static const std::string none;
  return none;
}

}  // namespace torchvq::cli
