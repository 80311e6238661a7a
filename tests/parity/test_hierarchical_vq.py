"""HierarchicalVQ against the reference."""

import inspect

import pytest
import torch

from .harness import Row, assert_oracle_decides, assert_same_behaviour, assert_same_signature
from .table_hierarchical_vq import DIFFERENT, DIM, SAME, TABLE, large_codes


def by_id(row):
    return row.id


@pytest.mark.parametrize("row", SAME, ids=by_id)
def test_same_numbers_as_the_reference(row, reference, subject):
    assert_same_behaviour(TABLE, row, reference, subject)


def without_the_last_scale(module):
    """Fixes the depth, which each package would draw from a generator of its own."""
    module.sample_nested_cutoff = lambda device: module.num_levels - 2
    module._depth = lambda: module.num_levels - 1
    return module.train()


@pytest.mark.parametrize(
    "options",
    [{}, dict(shared_codebook=False), dict(rotation_trick=True, scales=(1, 2, 3, 6))],
    ids=["plain", "own", "rotation"],
)
def test_dropped_scales_as_in_the_reference(options, reference, subject):
    row = Row("dropped", dict(nested_dropout=1.0, vqp_compat=True) | options, shape=(3, DIM, 6))
    theirs = without_the_last_scale(TABLE.build_prepared(reference, row))
    ours = without_the_last_scale(TABLE.build(subject, row))
    ours.load_state_dict(theirs.state_dict())
    for step in range(3):
        expected = theirs(row.input(step), return_cutoff=True)
        found = ours(row.input(step), return_cutoff=True)
        assert found[3] == expected[3]
        assert all(torch.equal(a, b) for a, b in zip(found[1], expected[1], strict=True))
        torch.testing.assert_close(found[0], expected[0], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(found[2], expected[2], rtol=1e-5, atol=1e-5)
        state = ours.state_dict()
        for name, value in theirs.state_dict().items():
            torch.testing.assert_close(state[name], value, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("channel_first", [True, False])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("masked", [False, True])
def test_outputs_may_be_viewed_as_in_the_reference(
    axes, channel_first, training, masked, reference, subject
):
    options = dict(dim=DIM, codebook_size=4, scales=(1, 2), kmeans_init=False)
    options |= dict(accept_image_fmap=axes == 2, accept_3d_fmap=axes == 3)
    size = [2] * axes
    x = torch.randn(3, DIM, *size) if channel_first else torch.randn(3, *size, DIM)
    mask = torch.arange(2**axes).ne(1).expand(3, -1).reshape(3, *size) if masked else None
    for package in (reference, subject):
        module = package.HierarchicalVQ(**options, channel_first=channel_first).train(training)
        assert module(x, mask=mask)[0].view(-1).shape == (x.numel(),)


@pytest.mark.parametrize("row", DIFFERENT, ids=by_id)
def test_right_where_the_reference_is_not(row, subject):
    assert_oracle_decides(TABLE, row, subject)


@pytest.mark.parametrize("method", ["forward", "get_output_from_indices", "choose_phi", "get_vq"])
def test_same_signature(method, reference, subject):
    theirs, ours = reference.HierarchicalVQ, subject.HierarchicalVQ
    assert_same_signature(getattr(theirs, method), getattr(ours, method))


def test_same_options(reference, subject):
    theirs = inspect.signature(reference.HierarchicalVQ.__init__).parameters
    ours = inspect.signature(subject.HierarchicalVQ.__init__).parameters
    for option, parameter in theirs.items():
        assert ours[option].kind == parameter.kind
        assert ours[option].default == parameter.default


@pytest.mark.parametrize("quant_resi", [0.5, -0.25, 1.0])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_a_convolution_takes_a_map(axes, quant_resi, reference, subject):
    """The loop over scales of a generator calls the interpolation, and then ``choose_phi(n)``, by itself."""
    options = dict(dim=DIM, codebook_size=4, scales=(1, 2), quant_resi=quant_resi)
    options |= dict(accept_image_fmap=axes == 2, accept_3d_fmap=axes == 3)
    theirs, ours = (package.HierarchicalVQ(**options) for package in (reference, subject))
    ours.load_state_dict(theirs.state_dict())
    maps = torch.randn(2, DIM, *range(3, 3 + axes), generator=torch.Generator().manual_seed(3))
    results = []
    for module in (theirs, ours):
        phi, x = module.choose_phi(1), maps.clone().requires_grad_()
        convolved = phi(x)
        convolved.square().sum().backward()
        results.append((convolved, x.grad, *(p.grad for p in phi.parameters())))
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    # A map of a grid of its own size is not interpolated.
    torch.testing.assert_close(ours.upsample_to_full(maps, maps.shape[2:], 1), results[1][0])


class Doubled(torch.nn.Module):
    def __init__(self, phi):
        super().__init__()
        self.phi = phi

    def forward(self, maps):
        return 2 * self.phi(maps)


OWN_MODULES = {
    "convolution": lambda phi: torch.nn.Conv1d(DIM, DIM, 3, padding=1),
    "layers": lambda phi: torch.nn.Sequential(torch.nn.Conv1d(DIM, DIM, 1), torch.nn.Tanh()),
    "identity": lambda phi: torch.nn.Identity(),
    "around": Doubled,
    "compiled": lambda phi: torch.compile(phi, backend="eager"),
}


@pytest.mark.parametrize("convolutions", [1, 2])
@pytest.mark.parametrize("kind", OWN_MODULES)
def test_a_module_of_the_user_takes_a_map(kind, convolutions, reference, subject):
    def build(package):
        # The reference moves a shared codebook between scales.
        options = dict(share_quant_resi=convolutions, shared_codebook=False)
        module = package.HierarchicalVQ(**TABLE.defaults, **options)
        torch.manual_seed(0)
        if convolutions == 1:
            module.phi_shared = OWN_MODULES[kind](module.phi_shared)
        else:
            module.phi_levels[1] = OWN_MODULES[kind](module.phi_levels[1])
        return module

    theirs, ours = build(reference), build(subject)
    large_codes(theirs)
    ours.load_state_dict(theirs.state_dict(), strict=False)
    results = []
    for module in (theirs.eval(), ours.eval()):
        x = torch.randn(2, DIM, 7, generator=torch.Generator().manual_seed(1)).requires_grad_()
        quantized, indices, _ = module(x)
        decoded = module.get_output_from_indices(indices, 7)
        loss = module.train()(x)[2]
        loss.backward()
        gradients = [own.grad for name, own in module.named_parameters() if "phi" in name]
        results.append([quantized, *indices, decoded, loss, x.grad, *gradients])
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("convolutions", range(2, 16))
def test_same_convolution_of_each_scale(convolutions, reference, subject):
    for scales in (*range(1, 20), 23, 27, 39, 45, 53):
        options = dict(
            dim=1, codebook_size=1, scales=range(1, scales + 1), share_quant_resi=convolutions
        )
        theirs, ours = (
            [list(m.phi_levels).index(m.choose_phi(n)) for n in range(scales)]
            for m in (
                package.HierarchicalVQ(**{**options, "scales": tuple(options["scales"])})
                for package in (reference, subject)
            )
        )
        assert theirs == ours


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_sizes_may_be_one_number_as_in_scales(axes, reference, subject):
    layout = {1: {}, 2: dict(accept_image_fmap=True), 3: dict(accept_3d_fmap=True)}[axes]
    torch.manual_seed(0)
    theirs, ours = (
        package.HierarchicalVQ(dim=4, codebook_size=5, scales=(2, 3), kmeans_init=False, **layout)
        for package in (reference, subject)
    )
    ours.load_state_dict(theirs.state_dict(), strict=False)
    x = torch.randn(2, 4, *[3] * axes)
    results = []
    for module in (theirs.eval(), ours.eval()):
        indices = module(x)[1]
        pooled = [module.pool_residual(x, scale)[0] for scale in module.scales]
        whole = module.upsample_to_full(x, 5, 0)
        results.append([*pooled, whole, module.get_output_from_indices(indices, 5)])
    torch.testing.assert_close(results[1], results[0])


def test_same_refusals(reference, subject):
    for bad in (
        dict(scales=(2, 1)),
        dict(scales=()),
        dict(scales=(0, 1)),
        dict(scales=((1, 4), (2, 2)), accept_image_fmap=True),
        dict(codebook_size=(4, 5)),
        dict(codebook_size=(4, 4, 4)),
        dict(nested_dropout=1.1),
        dict(nested_dropout=-0.1),
        dict(nested_dropout_min_levels=0),
        dict(accept_image_fmap=True, accept_3d_fmap=True),
    ):
        options = dict(dim=4, codebook_size=4, scales=(1, 2)) | bad
        for package in (reference, subject):
            with pytest.raises((AssertionError, ValueError)):
                package.HierarchicalVQ(**options)
