"""Sequential: a quantizer among other modules, as one module."""

from typing import Any

from torch import Tensor, nn

from torchvq._base.contained import contained
from torchvq._residual.grouped_stack import Groups
from torchvq._residual.stack import ResidualStack
from torchvq.binary_mapper import BinaryMapper
from torchvq.evo_lookup_free_quantization import EvoLFQ
from torchvq.finite_scalar_perturbation import FSP
from torchvq.finite_scalar_quantization import FSQ
from torchvq.hierarchical_vq import HierarchicalVQ
from torchvq.latent_quantization import LatentQuantize
from torchvq.lookup_free_quantization import LFQ
from torchvq.random_projection_quantizer import RandomProjectionQuantizer
from torchvq.residual_vq import ResidualVQ
from torchvq.sim_vq import SimVQ
from torchvq.vector_quantize import VectorQuantize

_QUANTIZERS = (
    BinaryMapper,
    EvoLFQ,
    FSP,
    FSQ,
    Groups,
    HierarchicalVQ,
    LatentQuantize,
    LFQ,
    RandomProjectionQuantizer,
    ResidualStack,
    ResidualVQ,
    SimVQ,
    VectorQuantize,
)


class Sequential(nn.Module):
    """Modules in sequence, exactly one of which is a quantizer of this package.

    The quantizer gets the output of the modules before it, and the keywords of the call. The result is that of the
    quantizer, with its quantized output passed through the modules behind it.

    Args:
        *fns: the modules in their order, one of them a quantizer. The others are called with one tensor. A
            ``RandomProjectionQuantizer``, which returns only indices, must be the last.

    Raises:
        ValueError: no quantizer among the modules, or several, or modules behind one without an output.

    Gradient, dtypes, masks, ranks, empty input, errors: those of the modules.

    State: that of the modules, under ``fns.<number>``.

    Example:
        >>> model = Sequential(nn.Linear(16, 32), VectorQuantize(dim=32, codebook_size=64), nn.Linear(32, 16))
        >>> quantized, indices, loss = model(torch.randn(1, 1024, 16), freeze_codebook=True)
        >>> quantized.shape, indices.shape
        (torch.Size([1, 1024, 16]), torch.Size([1, 1024]))
    """

    def __init__(self, *fns: nn.Module) -> None:
        super().__init__()
        places = [place for place, fn in enumerate(fns) if isinstance(fn, _QUANTIZERS)]
        if len(places) != 1:
            names = [type(fn).__name__ for fn in fns]
            raise ValueError(
                f"Sequential: expected fns to be modules with exactly one quantizer among them, but got {names}"
            )
        (self.place,) = places
        behind = len(fns) - 1 - self.place
        if isinstance(fns[self.place], RandomProjectionQuantizer) and behind:
            raise ValueError(
                "Sequential: expected RandomProjectionQuantizer, which has no output but its indices, to be the last "
                f"module, but got {behind} behind it"
            )
        self.fns = nn.ModuleList(fns)

    @property
    def quantizer(self) -> nn.Module:
        """The module that quantizes."""
        return self.fns[self.place]

    def forward(self, x: Tensor, **kwargs: Any) -> Any:
        """Runs the modules in their order.

        Args:
            x: the input of the first module.
            **kwargs: further arguments of the quantizer's ``forward``.

        Returns:
            The result of the quantizer, in the same type, with its first entry passed through the modules behind it; if
            the quantizer returns one tensor, that tensor.
        """
        fns = contained(self, "fns")
        for fn in fns[: self.place]:
            x = fn(x)
        returned = fns[self.place](x, **kwargs)
        if isinstance(returned, Tensor):
            return returned
        nested = not isinstance(returned[0], Tensor)  # an output, and a breakdown of its loss
        output, *rest = returned[0] if nested else returned
        for fn in fns[self.place + 1 :]:
            output = fn(output)
        whole = _like(returned[0] if nested else returned, [output, *rest])
        return (whole, *returned[1:]) if nested else whole


def _like(returned: Any, entries: list[Any]) -> Any:
    """The entries as a tuple of the type of ``returned``."""
    kind = type(returned)
    return kind(*entries) if hasattr(kind, "_fields") else kind(entries)
