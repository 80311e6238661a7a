#include <torchvq/options/binary_mapper.h>

#include <cmath>

#include <c10/util/Exception.h>

namespace torchvq {

void BinaryMapperOptions::validate() const {
  TORCH_CHECK_VALUE(bits() >= 1 && bits() <= 30,
                    "BinaryMapper: expected bits to be in [1, 30], but got ", bits());
  TORCH_CHECK_VALUE(!std::isnan(kl_loss_threshold()),
                    "BinaryMapper: expected kl_loss_threshold to be a number, but got nan");
}

}  // namespace torchvq
