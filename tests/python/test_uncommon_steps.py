"""Steps of options that seldom meet: own optimizers without gradients, draws of a step that learns apart, padding."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from torchvq import LatentQuantize, ResidualVQ, VectorQuantize

DIM, CODES = 8, 16
OWN_OPTIMIZER = dict(
    learnable_codebook=True,
    ema_update=False,
    in_place_codebook_optimizer=partial(torch.optim.SGD, lr=0.1),
)


def data(*shape: int) -> Tensor:
    return torch.randn(*shape, DIM, generator=torch.Generator().manual_seed(0))


def make(cls: Any = VectorQuantize, **options: Any) -> Any:
    torch.manual_seed(0)
    return cls(dim=DIM, codebook_size=CODES, **options)


def shifted(codes: Tensor) -> Tensor:
    return codes[:, None, None].expand(-1, 2, 5, -1, -1)


# The module's own optimizer --------------------------------------------------------------------------------------

COMPUTED_CODES: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "stored": (VectorQuantize, {}, {}),
    "affine": (VectorQuantize, dict(affine_param=True), {}),
    "bridge": (VectorQuantize, dict(vq_bridge=torch.nn.Linear(DIM, DIM)), {}),
    "transform": (VectorQuantize, {}, dict(codebook_transform_fn=shifted)),
    "affine levels": (ResidualVQ, dict(num_quantizers=2, affine_param=True), {}),
}


@pytest.mark.parametrize("case", COMPUTED_CODES)
def test_an_own_optimizer_steps_without_gradients_as_with_them(case: str) -> None:
    cls, options, call = COMPUTED_CODES[case]
    codes = []
    for how in ("plain", "no_grad", "reentrant"):
        module = make(cls, **OWN_OPTIMIZER, **deepcopy(options))
        x = data(2, 5).requires_grad_()
        if how == "no_grad":
            with torch.no_grad():
                module(x, **call)
        elif how == "reentrant":
            step = lambda x, module=module: tuple(module(x, **call))  # noqa: E731
            checkpoint(step, x, use_reentrant=True)[0].sum().backward()
        else:
            module(x, **call)
        codes.append(next(module.parameters()).detach().clone())
    assert torch.equal(codes[1], codes[0]) and torch.equal(codes[2], codes[0])


def test_an_own_optimizer_of_double_codes_steps_without_gradients() -> None:
    module = make(**OWN_OPTIMIZER).double()
    before = module.codebook.clone()
    with torch.no_grad():
        module(data(2, 5))
    assert not torch.equal(module.codebook, before)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize(
    ("cls", "options"),
    [
        (VectorQuantize, {}),
        (VectorQuantize, dict(heads=2, codebook_dim=4)),
        (ResidualVQ, dict(num_quantizers=2)),
        (ResidualVQ, dict(num_quantizers=2, shared_codebook=True, heads=2, codebook_dim=4)),
    ],
    ids=str,
)
def test_an_own_optimizer_goes_on_after_inference_mode(
    cls: Any, options: dict[str, Any], optimizer: Any, masked: bool
) -> None:
    momentum = dict(momentum=0.9) if optimizer is torch.optim.SGD else {}
    own = OWN_OPTIMIZER | dict(in_place_codebook_optimizer=partial(optimizer, lr=0.1, **momentum))
    mask = torch.arange(10).view(2, 5) % 3 > 0 if masked else None
    codes = []
    for mode in (torch.no_grad, torch.inference_mode):
        module = make(cls, **own, **options)
        with mode():
            module(data(2, 5), mask=mask)
        module(data(2, 5), mask=mask)
        codes.append(next(module.parameters()).detach().clone())
    assert torch.equal(*codes)


@pytest.mark.parametrize("cls", [VectorQuantize, partial(ResidualVQ, num_quantizers=2)])
def test_an_own_optimizer_refuses_before_it_steps_what_backward_cannot_save(cls: Any) -> None:
    momentum = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    module = make(cls, **OWN_OPTIMIZER | dict(in_place_codebook_optimizer=momentum))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with torch.inference_mode():
        x, mask = data(2, 5), torch.ones(2, 5, dtype=torch.bool)
    with pytest.raises(RuntimeError, match="VectorQuantize: expected x and mask to be usable"):
        module(x, mask=mask)
    after = module.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    with torch.no_grad():
        module(x, mask=mask)


MOMENTS = {
    "momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "adam": partial(torch.optim.Adam, lr=0.1),
}
LEVELS = dict(levels=[5, 5], channel_first=False)


@pytest.mark.parametrize("moments", MOMENTS)
@pytest.mark.parametrize("nothing", ["no tokens", "all masked"])
@pytest.mark.parametrize(
    ("cls", "options"),
    [
        (VectorQuantize, {}),
        (ResidualVQ, dict(num_quantizers=2)),
        (ResidualVQ, dict(num_quantizers=2, shared_codebook=True)),
        (LatentQuantize, LEVELS),
    ],
    ids=str,
)
def test_an_own_optimizer_learns_nothing_without_a_token(
    cls: Any, options: dict[str, Any], nothing: str, moments: str
) -> None:
    own = OWN_OPTIMIZER | dict(in_place_codebook_optimizer=MOMENTS[moments])
    if cls is LatentQuantize:
        module = LatentQuantize(dim=DIM, in_place_codebook_optimizer=MOMENTS[moments], **options)
    else:
        module = make(cls, **own, **options)
    module(data(2, 5))
    before = deepcopy(module.state_dict())
    if nothing == "no tokens":
        module(data(0, 5))
    else:
        module(data(2, 5), mask=torch.zeros(2, 5, dtype=torch.bool))
    assert all(parameter.grad is None for parameter in module.parameters())
    assert before.keys() == module.state_dict().keys()
    # A generator advances in every step.
    changed = [k for k, v in module.state_dict().items() if not torch.equal(v, before[k])]
    assert not [name for name in changed if not name.endswith("rng")]


def test_a_manual_step_after_a_batch_without_tokens_moves_nothing() -> None:
    own = OWN_OPTIMIZER | dict(in_place_codebook_optimizer=MOMENTS["momentum"])
    module = make(**own, manual_in_place_optimizer_update=True)
    module(data(2, 5))
    module.update_in_place_optimizer()
    before = module.codebook.clone()
    module(data(0, 5))
    module.update_in_place_optimizer()
    assert torch.equal(module.codebook, before)


# Calls that fail in the caller's code ------------------------------------------------------------------------------


class _Fails(torch.nn.Module):
    def forward(self, *_: Tensor) -> Tensor:
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("options", "call"),
    [
        (dict(threshold_ema_dead_code=2), dict(ema_update_weight=_Fails())),
        (dict(vq_bridge=_Fails(), kmeans_init=True), {}),
        (dict(vq_bridge=_Fails(), affine_param=True), {}),
    ],
    ids=str,
)
def test_a_step_that_fails_in_the_callers_code_leaves_no_trace(
    options: dict[str, Any], call: dict[str, Any]
) -> None:
    module = make(**options)
    if call:
        module(data(2, 5))
    before, stats = deepcopy(module.state_dict()), module.stats()
    with pytest.raises(ZeroDivisionError):
        module(data(2, 5), **call)
    assert all(torch.equal(own, before[name]) for name, own in module.state_dict().items())
    assert module.stats() == stats


class _Lost(torch.optim.SGD):
    def step(self, closure: Any = None) -> None:
        raise ZeroDivisionError


@pytest.mark.parametrize(
    "options", [{}, dict(num_quantizers=2, shared_codebook=True), None], ids=str
)
@pytest.mark.parametrize("earlier", [False, True])
def test_a_failed_step_of_an_own_optimizer_leaves_the_gradients_as_they_were(
    options: dict[str, Any] | None, earlier: bool
) -> None:
    own = dict(in_place_codebook_optimizer=lambda parameters: _Lost(parameters, lr=0.1))
    if options is None:
        module: torch.nn.Module = LatentQuantize(dim=5, levels=[5, 5], **own)
    else:
        module = make(ResidualVQ if options else VectorQuantize, **OWN_OPTIMIZER | own | options)
    before = {}
    for parameter in module.parameters():
        parameter.grad = torch.randn_like(parameter) if earlier else None
        before[parameter] = parameter.grad, deepcopy(parameter.grad)
    with pytest.raises(ZeroDivisionError):
        module(data(2, 5))
    for parameter, (gradient, value) in before.items():
        assert parameter.grad is gradient
        assert not earlier or torch.equal(gradient, value)


def test_an_interrupt_after_a_step_has_learnt_takes_nothing_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module, twin = make(affine_param=True), make(affine_param=True)
    x = data(2, 5)
    twin(x)

    def interrupt(totals: Tensor) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module._codebook, "record_totals", interrupt)
    with pytest.raises(KeyboardInterrupt):
        module(x)
    state = module.state_dict()
    assert all(torch.equal(state[name], own) for name, own in twin.state_dict().items())


def test_a_beam_that_is_no_integer_is_refused_before_k_means() -> None:
    module = make(ResidualVQ, num_quantizers=2, kmeans_init=True)
    with pytest.raises(TypeError, match="integer"):
        module(data(2, 20), beam_size=1.5)
    assert not any(level._codebook.initted for level in module.layers)


# A step that learns apart ------------------------------------------------------------------------------------------


def test_the_orthogonal_loss_draws_its_codes_before_the_generator_moves() -> None:
    """A function as weight learns in Python between two operators; ones as weight learn in one."""
    losses = []
    for weight in (torch.ones(CODES), lambda sums, counts: torch.ones(CODES)):
        module = make(orthogonal_reg_weight=0.3, orthogonal_reg_max_codes=5)
        found = [
            module(data(2, 5), ema_update_weight=weight, return_loss_breakdown=True)[-1]
            for _ in range(3)
        ]
        losses.append(torch.stack([own.orthogonal_reg for own in found]))
    torch.testing.assert_close(losses[1], losses[0])
    assert len(losses[0].unique()) == 3


def test_repr_names_the_parts() -> None:
    text = repr(make(codebook_dim=4))
    assert "VectorQuantize" in text and "project_in" in text and "Codebook" in text


# Dtypes and padding ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("double", [False, True], ids=["double input", "double module"])
@pytest.mark.parametrize("targets", [False, True])
def test_codes_of_each_token_of_another_dtype_than_the_input(double: bool, targets: bool) -> None:
    module = make(use_cosine_sim=True, commitment_use_cross_entropy_loss=True)
    x = data(2, 5)
    module, x = (module.double(), x) if double else (module, x.double())
    call = dict(indices=torch.zeros(2, 5, dtype=torch.long)) if targets else {}
    loss = module(x, codebook_transform_fn=shifted, **call)[1 if targets else 2]
    assert loss.dtype == x.dtype
    twin = make(use_cosine_sim=True, commitment_use_cross_entropy_loss=True).double()
    expected = twin(x.double(), codebook_transform_fn=shifted, **call)[1 if targets else 2]
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-6)


def test_padding_behind_a_projection_sends_no_gradient_to_it() -> None:
    module = make(codebook_dim=4, return_zeros_for_masked_padding=False).eval()
    x = data(2, 5)
    x[:, 3:] = torch.nan
    output = module(x, mask=torch.arange(5).expand(2, 5) < 3).quantized
    output[:, :3].sum().backward()
    assert module.project_in.weight.grad is None
    assert module.project_out.weight.grad.isfinite().all()
    assert torch.equal(output[:, 3:].isnan(), torch.ones(2, 2, DIM, dtype=torch.bool))


# Results that users write to ---------------------------------------------------------------------------------------

TO_THE_CODES = dict(route_gradients_to_input=False, rotation_trick=False)
LEARNT_CODES = dict(learnable_codebook=True, ema_update=False)
WRITTEN_RESULTS: dict[str, tuple[dict[str, Any], dict[str, Any], bool]] = {
    "codes": (TO_THE_CODES, {}, True),
    "cosine codes": (TO_THE_CODES | dict(use_cosine_sim=True), {}, True),
    "padding": (TO_THE_CODES, dict(mask=torch.ones(2, 5, dtype=torch.bool)), True),
    "learnt codes": (TO_THE_CODES | LEARNT_CODES, {}, True),
    "constant input": (LEARNT_CODES, {}, False),
    "gumbel": (TO_THE_CODES | dict(straight_through=True), {}, True),
    "transform": (LEARNT_CODES, dict(codebook_transform_fn=shifted), True),
    "drawn from a transform": (
        LEARNT_CODES | dict(stochastic_sample_codes=True),
        dict(codebook_transform_fn=shifted),
        True,
    ),
}


@pytest.mark.parametrize("case", WRITTEN_RESULTS)
def test_results_may_be_written_to_before_backward(case: str) -> None:
    options, call, moves = WRITTEN_RESULTS[case]
    gradients = []
    for writes in (False, True):
        module, x = make(**options), data(2, 5).requires_grad_(moves)
        quantized, indices, loss = module(x, **call)
        if writes:
            quantized *= 2
            indices += 1
        else:
            quantized = quantized * 2
        (quantized.square().sum() + loss).backward()
        gradients.append([tensor.grad for tensor in (x, *module.parameters())])
    for plain, written in zip(*gradients, strict=True):
        assert (plain is None) == (written is None)
        assert plain is None or torch.equal(plain, written)


# Compiled sizes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [False, True])
def test_one_graph_serves_all_beams(training: bool) -> None:
    module, twin = (make(ResidualVQ, num_quantizers=3).train(training) for _ in range(2))
    torch.compiler.reset()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager", dynamic=True)
    for beam in (2, 3, 4):
        found, expected = compiled(data(2, 5), beam_size=beam), twin(data(2, 5), beam_size=beam)
        assert torch.equal(found.indices, expected.indices)
        assert torch.equal(found.quantized, expected.quantized)


@pytest.mark.parametrize("compiled", [False, True])
def test_directions_without_a_gradient_have_no_noise(compiled: bool) -> None:
    options = dict(directional_reparam=True, threshold_ema_dead_code=1, freeze_codebook=True)
    module = make(**options).requires_grad_(False)
    call = torch.compile(module, backend="aot_eager") if compiled else module
    quantized, indices, _ = call(data(2, 5))
    assert torch.equal(quantized, module.get_codes_from_indices(indices))
    x = data(2, 5).requires_grad_()
    module(x)[0].sum().backward()
    assert x.grad is not None
