"""BinaryMapper: draws bits from logits and returns one-hot codes with a gradient."""

import math

import torch
from torch import Tensor

from torchvq._base.arguments import expect_floating
from torchvq._base.compat import vqp_compat_of
from torchvq._base.constants import expect_same_codes
from torchvq._base.integers import as_int64
from torchvq._base.layout import check_mask
from torchvq._base.noise import NoisyModule
from torchvq._base.options import check_options, expect_temperature
from torchvq._base.ranks import ALONE, Ranks, everybody
from torchvq.outputs import BinaryMapperOutput, BinaryMapperOutputWithIndices

_ops = torch.ops.torchvq
_LOG_2 = math.log(2)


class BinaryMapper(NoisyModule):
    """Maps ``bits`` logits to one of ``2**bits`` one-hot codes, the latent variable of the Free Transformer.

    Training draws each bit with its probability; the gradient is that of the codes' probabilities (Fleuret 2025,
    arXiv:2510.17558, section 3.4). Bit h counts ``2**h`` in the index.

    Args:
        bits: number of logits ``H``, 1 to 30. Default: 1.
        kl_loss_threshold: nats per token below which the divergence from the uniform distribution costs nothing.
            ``kappa`` in the paper. Default: log 2, one bit.
        deterministic_on_eval: whether evaluation takes the likelier bits instead of drawing, unless a call says
            otherwise. Default: True, but False with ``vqp_compat``.
        vqp_compat: behave as ``vector_quantize_pytorch``: evaluation draws unless ``deterministic_on_eval``, and the
            gradient ignores the temperature. Default: set by ``TORCHVQ_COMPAT``.

    Raises:
        ValueError: an option out of range. TypeError: an option of a wrong type.

    State: ``rng`` (2,), int64, seed and step of the draws; a checkpoint without it loads with ``strict=True``.

    Gradient: that of the probability of each code, ``prod_h p_h^b_h (1 - p_h)^(1 - b_h)``, from the one-hot output to
    the logits, in training unless a call says otherwise; the loss has its own gradient.

    Dtypes: logits of any floating dtype but float8. Codes have that dtype, indices are int64, the loss is float32
    (float64 for float64).

    Differences from ``vector_quantize_pytorch`` are listed in ``docs/migrating.md``.

    Example:
        >>> mapper = BinaryMapper(bits=8)
        >>> one_hot, indices, loss = mapper(torch.randn(1, 1024, 8), return_indices=True)
        >>> one_hot.shape, indices.shape, loss.shape
        (torch.Size([1, 1024, 256]), torch.Size([1, 1024]), torch.Size([]))
        >>> torch.equal(one_hot.argmax(-1), indices)
        True
    """

    def __init__(
        self,
        bits: int = 1,
        kl_loss_threshold: float = _LOG_2,
        deterministic_on_eval: bool | None = None,
        *,
        vqp_compat: bool | None = None,
    ) -> None:
        super().__init__()
        check_options("BinaryMapper", locals())
        self.bits = bits
        self.num_codes = 2**bits
        self.kl_loss_threshold = kl_loss_threshold
        self.vqp_compat = vqp_compat_of(vqp_compat)
        self.deterministic_on_eval = (
            not self.vqp_compat if deterministic_on_eval is None else bool(deterministic_on_eval)
        )

    @property
    def codes(self) -> Tensor:
        """The bits of all codes, bool (2^H, H), computed at each use."""
        device = self.rng.device
        every = torch.arange(self.num_codes, device=device)[:, None]
        return (every >> torch.arange(self.bits, device=device)) % 2 == 1

    @codes.setter
    def codes(self, codes: Tensor) -> None:
        expect_same_codes("BinaryMapper", "codes", codes, self.codes)

    def extra_repr(self) -> str:
        """The options, for ``print``."""
        return f"bits={self.bits}, kl_loss_threshold={self.kl_loss_threshold:g}"

    def forward(
        self,
        logits: Tensor,
        temperature: float = 1.0,
        straight_through: bool | None = None,
        calc_aux_loss: bool | None = None,
        deterministic: bool | None = None,
        return_indices: bool = False,
        reduce_aux_kl_loss: bool = True,
        *,
        mask: Tensor | None = None,
    ) -> BinaryMapperOutput | BinaryMapperOutputWithIndices:
        """One-hot codes of logits.

        Args:
            logits: (*, bits), any floating dtype but float8.
            temperature: temperature of the draws and of the gradient, 0 or more; the probability of a bit is
                sigmoid(logit / temperature). 0 takes the likelier bits, and gives no gradient.
            straight_through: whether the output has the gradient of the codes' probabilities. Default: in training.
            calc_aux_loss: whether to compute the loss; otherwise it is 0. Default: in training.
            deterministic: take the likelier bits (a logit above 0) instead of drawing. Default: in evaluation, if
                ``deterministic_on_eval``.
            return_indices: whether to return the indices as well.
            reduce_aux_kl_loss: the mean of the loss over tokens; otherwise one value per token (*).
            mask: (*), bool, True for real tokens. Padding takes no part in anything: its code is all zeros, its index
                -1.

        Returns:
            ``(one_hot, aux_kl_loss)`` or ``(one_hot, indices, aux_kl_loss)``, named. one_hot is (*, 2**bits) of the
            dtype of logits, exactly zeros and ones; indices (*), int64. The loss is
            max(0, KL(codes | uniform) - kl_loss_threshold), float32 (float64 for float64). No tokens: 0. A token with
            NaN or infinity gives NaN and index 0.

        Raises:
            ValueError: wrong shapes or temperature. TypeError: wrong dtypes.
        """
        self._check(logits, mask)
        # Before the generator advances.
        if not torch.compiler.is_compiling():
            expect_temperature("BinaryMapper", "temperature", temperature, least=0)
        straight_through = self.training if straight_through is None else straight_through
        calc_aux_loss = self.training if calc_aux_loss is None else calc_aux_loss
        if deterministic is None:
            deterministic = not self.training and self.deterministic_on_eval
        rng = None if deterministic else self.take_rng(logits, mask, self._ranks())
        indices = _ops.binary_sample(logits, rng, temperature=temperature, mask=mask)
        one_hot = _ops.binary_one_hot(
            logits if straight_through else logits.detach(),
            indices,
            temperature=1.0 if self.vqp_compat else temperature,
        )
        loss = self._aux_loss(logits, reduce_aux_kl_loss, mask) if calc_aux_loss else None
        if loss is None:
            dtype = torch.promote_types(logits.dtype, torch.float32)
            loss = torch.zeros((), device=logits.device, dtype=dtype)
        if return_indices:
            return BinaryMapperOutputWithIndices(one_hot, indices, loss)
        return BinaryMapperOutput(one_hot, loss)

    def binary_entropy(self, logits: Tensor) -> Tensor:
        """Entropy of the codes in nats: (*) for logits (*, bits), with gradient."""
        self._check(logits, None)
        return _ops.binary_entropy(logits)

    def calc_aux_loss(self, logits: Tensor, reduce_aux_kl_loss: bool = True) -> Tensor:
        """Only the loss of ``forward``."""
        self._check(logits, None)
        return self._aux_loss(logits, reduce_aux_kl_loss, None)

    def log_prob(
        self,
        logits: Tensor,
        *,
        indices: Tensor | None = None,
        one_hot: Tensor | None = None,
        sum_bits: bool = True,
    ) -> Tensor:
        """Log-probability of codes, given by integer index (*) or one-hot (*, 2**bits): (*), or (*, bits) per bit.

        Gradient to the logits. Index -1, and a one-hot code of zeros, have log-probability 0.
        """
        self._check(logits, None)
        if indices is not None:
            indices = as_int64("BinaryMapper", indices)
        return _ops.binary_log_prob(logits, indices, one_hot, sum_bits)

    def _aux_loss(self, logits: Tensor, reduce: bool, mask: Tensor | None) -> Tensor:
        return _ops.binary_kl_loss(
            logits, threshold=self.kl_loss_threshold, mask=mask, reduce=reduce
        )

    def _ranks(self) -> Ranks:
        """Ranks hold different tokens, so they draw different bits."""
        return everybody("BinaryMapper") if self.training else ALONE

    def _check(self, logits: Tensor, mask: Tensor | None) -> None:
        expect_floating("BinaryMapper", "logits", logits)
        if logits.dim() < 1 or logits.shape[-1] != self.bits:
            raise ValueError(
                f"BinaryMapper: expected logits to have shape (*, {self.bits}), but got {list(logits.shape)}"
            )
        if mask is not None:
            check_mask("BinaryMapper", mask, logits.shape[:-1])
            if mask.device != logits.device:
                raise RuntimeError(
                    "BinaryMapper: expected logits and mask to be on the same device, but got logits on "
                    f"{logits.device} and mask on {mask.device}"
                )
