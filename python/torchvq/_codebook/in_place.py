"""The step of a codebook's own optimizer inside a training forward."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from torchvq._base.ranks import Ranks
from torchvq._base.readable import is_readable_after_wait
from torchvq._base.sharded import keep_in_shards
from torchvq._base.torch_private import as_constants, is_mapped, uncounted
from torchvq._codebook.learning import learn_apart

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from torchvq._codebook.request import Request
    from torchvq.latent_quantization import LatentQuantize
    from torchvq.residual_vq import ResidualVQ
    from torchvq.vector_quantize import VectorQuantize

    Owner: TypeAlias = LatentQuantize | ResidualVQ | VectorQuantize

_ops = torch.ops.torchvq


def _keep(tensor: Tensor) -> Tensor:
    return tensor


@contextmanager
def own_backward() -> Iterator[None]:
    """Context of a backward pass inside the forward; it also works in inference mode.

    Its saved-tensor hooks replace those of activation checkpointing, which would drop the saved tensors and recompute
    the region.
    """
    hooks = torch.autograd.graph.saved_tensors_hooks(_keep, _keep)
    with torch.inference_mode(False), torch.enable_grad(), hooks:
        yield


def accumulate_gradients(loss: Tensor, codebook: nn.Module) -> None:
    """Accumulates gradients as ``loss.backward()`` does, without the hooks by which wrappers count gradients."""
    parameters = [parameter for parameter in codebook.parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if gradient is not None:
            before = parameter.grad
            parameter.grad = gradient if before is None else before + gradient


def target_of(tokens: Tensor) -> Tensor:
    """The target of a step of the module's own optimizer. Inference tensors are cloned: backward cannot save them."""
    return tokens.clone() if tokens.is_inference() else tokens.detach()


def learns_in_place(owner: "Owner", codebook: nn.Module) -> bool:
    """Whether a training forward steps the module's own optimizer; `requires_grad_(False)` turns this off."""
    if owner.in_place_codebook_optimizer is None or not owner.training:
        return False
    parameters = list(codebook.parameters())
    if not parameters:
        raise RuntimeError(
            f"{type(owner).__name__}: expected the codes to be parameters with in_place_codebook_optimizer, but got "
            "other tensors, as DataParallel and FullyShardedDataParallel (with use_orig_params=False) put in their "
            "place; use DistributedDataParallel or fully_shard"
        )
    if any(is_mapped(parameter) for parameter in parameters):
        raise RuntimeError(
            f"{type(owner).__name__}: expected no torch.vmap over parameters with in_place_codebook_optimizer, "
            "whose steps are the module's own, but got mapped parameters"
        )
    return any(parameter.requires_grad for parameter in parameters)


Gradients = dict[nn.Parameter, Tensor | None]


def _restore(gradients: Gradients) -> None:
    for parameter, gradient in gradients.items():
        parameter.grad = gradient


@contextmanager
def gradients_before(codebook: nn.Module) -> Iterator[Gradients]:
    """Context of a step, with the gradients before it for ``average_gradients``. A step that fails puts them back:
    repeated, it would take its own gradient twice."""
    before: Gradients = {parameter: parameter.grad for parameter in codebook.parameters()}
    try:
        yield before
    except BaseException:
        _restore(before)
        raise


def average_gradients(before: Gradients, tokens: Tensor, mask: Tensor | None, ranks: Ranks) -> bool:
    """Turns gradients of each rank's mean loss into those of the mean over the tokens (H, T, D) of all ranks.

    Returns whether there is any token, the same on all ranks. If not, the gradients are those before again, and the
    optimizer must not step: with moments or decay it would move codes by gradients of zero, too.
    """
    # What sizes tell needs no value of a tensor, for which a GPU would have to wait.
    certain = mask is None and tokens.shape[0] * tokens.shape[1] > 0
    anywhere = tokens.new_zeros(()) if mask is None else mask.any()
    if not ranks.alone:
        parameters = [parameter for parameter in before if parameter.grad is not None]
        # The mean of ones over the tokens of all ranks is 1, or 0 if there is none.
        gradients = [*(parameter.grad for parameter in parameters), torch.ones_like(anywhere)]
        *averages, anywhere = _ops.average_gradients(
            gradients, tokens, mask=mask, **ranks.options()
        )
        for parameter, average in zip(parameters, averages, strict=True):
            parameter.grad = average
    learns = certain or not is_readable_after_wait(anywhere) or bool(anywhere)
    if not learns:
        _restore(before)
    return learns


class InPlaceStep(NamedTuple):
    """A step of the codebook's own optimizer."""

    loss: Tensor  # () before the step
    # (H, K), the tokens of all ranks for each code; None if averages and dead codes did not change in this step.
    counts: Tensor | None


@uncounted
def in_place_step(
    vq: "VectorQuantize",
    projected: Tensor,
    codebook: Tensor,
    mask: Tensor | None,
    request: "Request",
    learns: bool,
) -> InPlaceStep:
    """One step of the codebook's own optimizer towards the tokens (H, T, D).

    Args:
        learns: whether averages and dead codes change here as well, by the indices that this step has found. The
            search for the output comes afterwards and so finds the codes of the whole step. If they changed after
            that search, codes would be a step behind the encoder.
    """
    state = vq._codebook
    if state.replaying:
        return InPlaceStep(projected.new_zeros(()), None)
    _check_saved(vq, projected, mask)
    with gradients_before(state) as before:
        with own_backward():
            target, mask = target_of(projected), None if mask is None else target_of(mask)
            _, indices, codes, inputs = _ops.quantize(
                target, codebook, state.rng, metric=state.metric, estimator="none"
            )
            loss: Tensor = _ops.commitment_loss(inputs, codes, mask=mask)
            accumulate_gradients(loss, state)
        steps = average_gradients(before, target, mask, request.ranks)
        if steps and not vq.manual_in_place_optimizer_update:
            vq.update_in_place_optimizer()
    counts = learn_apart(state, inputs, indices, mask, request) if learns else None
    state.record_embed()
    return InPlaceStep(loss.detach(), counts)


def _check_saved(vq: "VectorQuantize", projected: Tensor, mask: Tensor | None) -> None:
    """Raises for tensors that the forward could not save for backward, before the optimizer steps."""
    saved = [] if mask is None else [mask]
    if vq.has_commitment_loss and not vq.commitment_use_cross_entropy_loss:
        saved.append(projected)
    if torch.is_grad_enabled() and any(tensor.is_inference() for tensor in saved):
        raise RuntimeError(
            "VectorQuantize: expected x and mask to be usable in backward, because codes with an "
            "in_place_codebook_optimizer take a gradient, but got a tensor made in inference mode; clone it first"
        )


def optimizer_text(owner: "Owner") -> str:
    """The optimizer in which all ranks must agree: its class and options, and whether its state was loaded.

    Ranks do not exchange that state, so those that load a checkpoint and those that do not would drift apart. The
    options are those of construction: ranks make a handshake for each text, so for each rate of a scheduler.
    """
    optimizer = owner.in_place_codebook_optimizer
    if optimizer is None:
        return "none"
    loaded = " with loaded state" if owner.in_place_state_loaded else ""
    options = optimizer.defaults
    lr, *values = as_constants((options.get("lr"), *options.values()))
    others = [
        f"{name} {value}"
        for name, value in zip(options, values, strict=True)
        if name != "lr" and isinstance(value, bool | int | float | tuple)
    ]
    rate = f"{type(optimizer).__name__} of rate {lr}"
    return ", ".join([f"{rate}{loaded}", *others])


# The optimizer's state in the module's checkpoint --------------------------------------------------------------

_PREFIX = "in_place_codebook_optimizer."
# Names of torch's optimizers for tensors of the shape of their parameter.
_OF_ITS_SHAPE = (
    "momentum_buffer",
    "exp_avg",
    "exp_avg_sq",
    "max_exp_avg_sq",
    "square_avg",
    "grad_avg",
    "sum",
)
_MOMENTS = {"step": None, "exp_avg": None, "exp_avg_sq": None, "max_exp_avg_sq": "amsgrad"}
# The names that torch's optimizers read, by the class, with the option that each depends on, if any.
_READ: dict[str, dict[str, str | None]] = {
    "Adam": _MOMENTS,
    "AdamW": _MOMENTS,
    "RMSprop": {
        "step": None,
        "square_avg": None,
        "momentum_buffer": "momentum",
        "grad_avg": "centered",
    },
    "Adagrad": {"step": None, "sum": None},
}


class OptimizerInCheckpoint:
    """A module whose own optimizer goes with it: its state moves and is cast with the parameters.

    Lets torch.distributed.checkpoint resolve the keys of that state (``in_place_codebook_optimizer.0.exp_avg``) as
    paths of attributes, which an optimizer does not have.
    """

    in_place_codebook_optimizer: "Optimizer | None"
    in_place_parameter_names: list[str]
    #: Whether a checkpoint had state of the optimizer.
    in_place_state_loaded: bool = False
    #: Whether the optimizer makes its state in its first step, as all of torch's do but Adagrad.
    in_place_state_begins_empty: bool = False

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        super()._apply(fn, recurse)  # type: ignore[misc]
        if recurse and self.in_place_codebook_optimizer is not None:
            _move_state(self.in_place_codebook_optimizer, fn)
        return self

    def _fqn_modifiers(self) -> dict[str, str]:
        return {_PREFIX[:-1]: "_optimizer_paths"}

    @property
    def _optimizer_paths(self) -> SimpleNamespace:
        optimizer = self.in_place_codebook_optimizer
        parameters = [] if optimizer is None else _in_groups(optimizer)
        states = {} if optimizer is None else optimizer.state
        fields = [SimpleNamespace(**states.get(own, {})) for own in parameters]
        numbered = SimpleNamespace(**{str(i): own for i, own in enumerate(fields)})
        return SimpleNamespace(**{_PREFIX[:-1]: numbered})


def keep_optimizer_in_checkpoint(vq: "Owner") -> None:
    """Adds the optimizer's state to the state dict, as tensors ``<prefix><parameter>.<name>``.

    Its options are the constructor's. A checkpoint of before the optimizer's first step has none of these keys, nor has
    one of the reference: codes that load without them begin anew, as they do by a load into an optimizer of torch. One
    that has its state from its construction on (Adagrad) then keeps what it has.
    """
    optimizer = vq.in_place_codebook_optimizer
    if optimizer is None or not hasattr(optimizer, "param_groups"):
        got = "none" if optimizer is None else type(optimizer).__name__
        raise ValueError(
            f"{type(vq).__name__}: expected in_place_codebook_optimizer to return an optimizer, but got {got}"
        )
    names = {id(parameter): name for name, parameter in vq.named_parameters()}
    vq.in_place_state_begins_empty = not optimizer.state
    vq.in_place_parameter_names = [names[id(parameter)] for parameter in _in_groups(optimizer)]
    vq.register_state_dict_post_hook(_save)  # type: ignore[no-untyped-call]
    vq.register_load_state_dict_pre_hook(_load)  # type: ignore[no-untyped-call]


def _parameters(owner: "Owner") -> list[Tensor]:
    """The parameters of a module's own optimizer, after replacing those that the module no longer has.

    Loading by assignment, `to_empty` and `fully_shard` put other tensors in their place.
    """
    optimizer = owner.in_place_codebook_optimizer
    assert optimizer is not None
    names = iter(owner.in_place_parameter_names)
    for group in optimizer.param_groups:
        for place, old in enumerate(group["params"]):
            path, _, name = next(names).rpartition(".")
            # Not `get_parameter`, which rejects the plain tensors that `torch.func.functional_call` puts there.
            present = getattr(owner.get_submodule(path), name)
            if present is not old:
                group["params"][place] = present
                if old in optimizer.state:
                    optimizer.state[present] = optimizer.state.pop(old)
    return _in_groups(optimizer)


@torch.no_grad()
def _move_state(optimizer: "Optimizer", fn: Callable[[Tensor], Tensor]) -> None:
    """Applies a move or a cast to the state; torch's optimizers take moments like their gradient alone."""
    for own in optimizer.state.values():
        for name, value in own.items():
            if name != "step" and isinstance(value, Tensor):
                own[name] = fn(value)


def _in_groups(optimizer: "Optimizer") -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def step_in_place_optimizer(owner: "Owner") -> None:
    """Steps the module's own optimizer, if there is one, and clears the gradients."""
    optimizer = owner.in_place_codebook_optimizer
    if optimizer is not None:
        _parameters(owner)
        # State made in inference mode could not be updated outside of it.
        with torch.inference_mode(False), torch.no_grad():
            optimizer.step()
            optimizer.zero_grad()
        for part in owner.modules():
            keep_in_shards(part)


def _save(vq: "Owner", state_dict: dict[str, Tensor], prefix: str, *_: object) -> None:
    optimizer = vq.in_place_codebook_optimizer
    if optimizer is None:  # taken away after construction
        return
    for index, parameter in enumerate(_parameters(vq)):
        for name, value in optimizer.state.get(parameter, {}).items():
            if value is not None:
                tensor = torch.as_tensor(value).detach()
                state_dict[f"{prefix}{_PREFIX}{index}.{name}"] = tensor


def _load(
    vq: "Owner",
    state_dict: dict[str, Tensor],
    prefix: str,
    metadata: dict[str, object],
    _strict: object,
    _missing: object,
    _unexpected: object,
    errors: list[str],
) -> None:
    optimizer = vq.in_place_codebook_optimizer
    if optimizer is None:
        return
    parameters = _parameters(vq)
    found: list[tuple[Tensor, str, Tensor]] = []
    wrong = len(errors)
    # Popped, so that loading does not report them as unexpected.
    for key in [key for key in state_dict if key.startswith(prefix + _PREFIX)]:
        value = state_dict.pop(key)
        index, _, name = key[len(prefix + _PREFIX) :].partition(".")
        if not (index.isdecimal() and int(index) < len(parameters) and name):
            errors.append(f"{key}: expected <parameter>.<name> of {len(parameters)} parameters")
            continue
        parameter = parameters[int(index)]
        wanted = _shape_of(name, parameter, optimizer)
        if wanted is not None and value.shape != wanted:
            errors.append(f"{key}: expected shape {list(wanted)}, but got {list(value.shape)}")
        elif name == "step" and not _is_number_of_steps(value):
            errors.append(f"{key}: expected a number of steps, but got {value.tolist()}")
        found.append((parameter, name, value))
    for number, parameter in enumerate(parameters):
        present = {name for owner, name, _ in found if owner is parameter}
        missing = _read_by(optimizer, parameter) - present if present else set()
        errors.extend(
            f"{prefix}{_PREFIX}{number}.{name}: expected beside {sorted(present)}, but got none"
            for name in sorted(missing)
        )
    if len(errors) == wrong:
        assigned = bool(metadata.get("assign_to_params_buffers", False))
        for path, parameter in zip(vq.in_place_parameter_names, parameters, strict=True):
            # A part of a checkpoint, without the codes, leaves the optimizer alone.
            lacking = prefix + path in state_dict and all(own is not parameter for own, *_ in found)
            if lacking and vq.in_place_state_begins_empty:
                optimizer.state.pop(parameter, None)
        for parameter, name, value in found:
            optimizer.state[parameter][name] = _own(value, name, parameter, assigned)
        vq.in_place_state_loaded = bool(found)


@torch.inference_mode(False)  # later steps write to it outside of inference mode
@torch.no_grad()
def _own(value: Tensor, name: str, parameter: Tensor, assigned: bool) -> Tensor:
    """A copy of loaded state on the device and of the dtype of its parameter, as torch's optimizers load it.

    A checkpoint that is assigned brings its device and dtype to the parameter as well, and so does the first one of
    a module on meta.
    """
    if name == "step" or assigned or parameter.is_meta:
        return value.clone()
    return value.to(parameter.device, parameter.dtype, copy=True)


def _is_number_of_steps(value: Tensor) -> bool:
    return not is_readable_after_wait(value) or (value.numel() == 1 and 0 <= float(value) <= 2**53)


def _shape_of(name: str, parameter: Tensor, optimizer: "Optimizer") -> torch.Size | None:
    """The shape of a tensor of the optimizer's state; None if unknown before the optimizer's first step."""
    present = optimizer.state.get(parameter, {}).get(name)
    if isinstance(present, Tensor):
        return present.shape
    return parameter.shape if name in _OF_ITS_SHAPE else None


def _read_by(optimizer: "Optimizer", parameter: Tensor) -> set[str]:
    """The names of the state that a step of the optimizer reads; of other optimizers than torch's none is known."""
    options = next(
        group
        for group in optimizer.param_groups
        if any(parameter is own for own in group["params"])
    )
    names = _READ.get(type(optimizer).__name__, {})
    return {name for name, option in names.items() if option is None or options[option]}
