"""A simulated GPU: tensors that report to be on one, with their data on the CPU.

``with SimulatedDevice("cuda") as gpu: y = op(gpu.put(x))`` runs the any-device path of every operator of torchvq,
including those that it calls, and torch's own operators as a GPU might round them:

- sums, matrix products and scatters add in a random order, and a mean is a sum times the reciprocal;
- division by a number of the host is multiplication by its reciprocal;
- exponentials and similar functions are off by a unit in the last place, multiply-adds are rounded once;
- sorts and ``topk`` put equal values in any order, unless they are asked to be stable;
- float32 products round their inputs to TensorFloat32 if the user allows it, and products that cuBLAS is told to
  emulate lose half of their digits.

Every operation for which the host would wait for the device is recorded in ``waits``, with the operators inside which
it happened; ``calls`` counts torch's operators, each of which is at least one launch. ``"mps"`` has no float64.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.backend_registration
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

DISPATCH_KEYS = {"cuda": "CUDA", "mps": "MPS", "gpu": "PrivateUse1"}
ANY = "CompositeExplicitAutograd"
# Operators whose output size or host result depends on values, so the host waits.
READS = {
    "_local_scalar_dense", "item", "is_nonzero", "equal", "allclose", "nonzero", "masked_select",
    "unique_consecutive", "unique_dim", "_unique", "_unique2", "bincount", "repeat_interleave",
}  # fmt: skip
TRANSCENDENTAL = {
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "tanh", "sigmoid", "erf", "erfinv", "softplus", "sin",
    "cos", "tan", "atan", "asin", "acos", "atanh", "logit", "special_ndtr", "special_ndtri", "pow", "rsqrt",
    "logaddexp", "logsumexp", "_softmax", "_log_softmax", "cumsum", "linalg_vector_norm", "var", "std",
    "native_layer_norm", "addcmul", "addcdiv", "lerp", "convolution", "upsample_bicubic2d", "tanh_backward",
    "_softmax_backward_data", "_log_softmax_backward_data", "baddbmm", "_cdist_forward",
}  # fmt: skip
# Views and allocations, which launch no kernel.
VIEWS_AND_MEMORY = {
    "detach", "alias", "view", "_unsafe_view", "_reshape_alias", "as_strided", "select", "slice", "expand",
    "permute", "transpose", "t", "unsqueeze", "squeeze", "split", "split_with_sizes", "unbind", "empty",
    "empty_strided", "empty_like", "new_empty", "new_empty_strided", "lift_fresh", "diagonal",
}  # fmt: skip


class DeviceTensor(Tensor):
    """A tensor on a simulated device; `inner` holds its data."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor, device: torch.device) -> DeviceTensor:
        made: DeviceTensor = Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=device,
        )
        made.inner = inner
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{func}: expected to be called under SimulatedDevice")


class SimulatedDevice(TorchDispatchMode):
    """The device; operators on its tensors must be called within its context."""

    def __init__(self, kind: str = "cuda", seed: int = 0, rounds: bool = True) -> None:
        super().__init__()
        self.device = torch.device(kind, 0)
        self.rounds = rounds
        self.waits: list[tuple[str, ...]] = []
        self.calls: Counter[str] = Counter()
        self._inside: list[str] = []
        self._generator = torch.Generator().manual_seed(seed)

    def put(self, value: Any) -> Any:
        """Moves the tensors of a tree to the device; other values are unchanged."""
        return tree_map(lambda v: self._wrap(v.detach().clone()) if type(v) is Tensor else v, value)

    def get(self, value: Any) -> Any:
        """Copies the tensors of a tree back; the copy is not recorded as a wait."""
        return tree_map(lambda v: v.inner.clone() if isinstance(v, DeviceTensor) else v, value)

    @staticmethod
    def prepare_autograd() -> None:
        """Enables autograd for tensors on "gpu", for the rest of the process.

        Autograd needs the guard and the streams of a device; builds of torch without CUDA have none for "cuda".
        """
        torch.utils.backend_registration._setup_privateuseone_for_python_backend("gpu")

    def move(self, module: torch.nn.Module) -> torch.nn.Module:
        """``module.to(device)``."""
        with self:
            return self._move(module)

    def _move(self, module: torch.nn.Module) -> torch.nn.Module:
        for part in module.modules():
            for name, tensor in part._parameters.items():
                if tensor is not None:
                    moved = self._wrap(tensor.detach().clone())
                    part._parameters[name] = torch.nn.Parameter(moved, tensor.requires_grad)
            for name, tensor in part._buffers.items():
                if tensor is not None:
                    part._buffers[name] = self._wrap(tensor.detach().clone())
        return module

    def _wrap(self, inner: Tensor) -> DeviceTensor:
        if self.device.type == "mps" and inner.dtype == torch.float64:
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype")
        return DeviceTensor(inner, self.device)

    # Dispatch ------------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with torch.no_grad():
            if func.namespace == "torchvq":
                return self._operator(func, args, kwargs)
            return self._aten(func, args, kwargs)

    def _operator(self, func: Any, args: Any, kwargs: Any) -> Any:
        if not any(isinstance(leaf, DeviceTensor) for leaf in _leaves((args, kwargs))):
            return func(*args, **kwargs)
        name = func._schema.name
        self._inside.append(name.removeprefix("torchvq::"))
        try:
            with self:
                own = DISPATCH_KEYS[self.device.type]
                if own == "MPS" and torch._C._dispatch_has_kernel_for_dispatch_key(name, own):
                    return func._op_dk(getattr(torch._C.DispatchKey, own), *args, **kwargs)
                if torch._C._dispatch_has_kernel_for_dispatch_key(name, ANY):
                    return func._op_dk(getattr(torch._C.DispatchKey, ANY), *args, **kwargs)
                return func.decompose(*args, **kwargs)
        finally:
            self._inside.pop()

    def _aten(self, func: Any, args: Any, kwargs: Any) -> Any:
        name = func._schema.name.split("::")[1]
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
            # A mode below autograd also gets composite operators, which autograd would have decomposed.
            with self:
                return func.decompose(*args, **kwargs)
        if torch.Tag.inplace_view in func.tags:
            raise NotImplementedError(f"{func} changes the shape of a tensor in place")
        wrappers = {id(v.inner): v for v in _leaves((args, kwargs)) if isinstance(v, DeviceTensor)}
        target = kwargs.get("device")
        target = None if target is None else torch.device(target)
        here = target is not None and target.type == self.device.type
        if not wrappers and not here:
            return func(*args, **kwargs)
        self._note_wait(name, args, kwargs, target)
        if name not in VIEWS_AND_MEMORY:
            self.calls[name] += 1
        plain_args, plain = tree_map(_inner, args), tree_map(_inner, kwargs)
        if target is not None:
            plain["device"] = torch.device("cpu")
        host = [type(arg) is Tensor and arg.dim() == 0 for arg in args]
        result = self._rounded(name, func, plain_args, plain, host)
        leaves = target is not None and not here
        if leaves or name in ("_local_scalar_dense", "item", "equal", "is_nonzero"):
            return result

        def wrapped(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            # An in-place operator returns its argument, so keep the argument's wrapper.
            return wrappers[id(value)] if id(value) in wrappers else self._wrap(value)

        return tree_map(wrapped, result)

    def _note_wait(self, name: str, args: Any, kwargs: Any, target: torch.device | None) -> None:
        waits = name.rstrip("_") in {read.rstrip("_") for read in READS}
        if name == "_to_copy" and target is not None:
            waits = (args[0].device.type != target.type) and not kwargs.get("non_blocking")
        if name == "copy_":
            pair = {args[0].device.type, args[1].device.type}
            waits = len(pair) > 1 and args[0].numel() > 0
        if name in ("index", "index_put", "index_put_", "_unsafe_index"):
            waits = any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1])
            waits = waits or any(i is not None and type(i) is Tensor and i.dim() for i in args[1])
        if waits:
            self.waits.append((*self._inside, name))

    # Rounding ------------------------------------------------------------------------------------------------

    def _rounded(self, name: str, func: Any, args: Any, kwargs: Any, host: list[bool]) -> Any:
        floats = any(isinstance(v, Tensor) and v.is_floating_point() for v in _leaves(args))
        if not (self.rounds and floats):
            return func(*args, **kwargs)
        bare = name.rstrip("_")
        if (
            bare == "div"
            and (host[1] or not isinstance(args[1], Tensor))
            and "rounding_mode" not in kwargs
        ):
            return self._by_reciprocal(name, args)
        rule: Callable[..., Any] | None = getattr(self, f"_{bare}_rule", None)
        if rule is not None:
            return rule(func, args, kwargs)
        result = func(*args, **kwargs)
        if bare in ("add", "sub") and kwargs.get("alpha", 1) not in (1, -1):
            return self._moved(result, name.endswith("_"))
        if bare in TRANSCENDENTAL:
            if isinstance(result, tuple):
                return (self._moved(result[0], False), *result[1:])
            return self._moved(result, name.endswith("_"))
        return result

    def _order(self, size: int) -> Tensor:
        return torch.randperm(size, generator=self._generator)

    def _moved(self, result: Tensor, in_place: bool) -> Tensor:
        if not result.is_floating_point() or result.dtype in (torch.float16, torch.bfloat16):
            return result
        short = result.to(torch.bfloat16 if result.dtype == torch.float32 else torch.float32)
        way = torch.randint(3, result.shape, generator=self._generator)
        stays = (short.to(result.dtype) == result) | (way == 0) | ~result.isfinite()
        target = torch.where(way == 1, torch.inf, -torch.inf).to(result.dtype)
        moved = torch.where(stays, result, torch.nextafter(result, target))
        return result.copy_(moved) if in_place else moved

    def _by_reciprocal(self, name: str, args: Any) -> Tensor:
        x, divisor = args[0], args[1]
        factor = torch.as_tensor(divisor, dtype=x.dtype if x.is_floating_point() else None)
        result = x * factor.double().reciprocal().to(factor.dtype)
        return x.copy_(result) if name.endswith("_") else result

    def _sum_rule(self, func: Any, args: Any, kwargs: Any) -> Tensor:
        x, *rest = args
        dims = rest[0] if rest and rest[0] else range(x.dim())
        for dim in dims:
            x = x.index_select(dim, self._order(x.size(dim)))
        return func(x, *rest, **kwargs)

    def _mean_rule(self, func: Any, args: Any, kwargs: Any) -> Tensor:
        x, *rest = args
        dims = list(rest[0]) if rest and rest[0] else list(range(x.dim()))
        keep = rest[1] if len(rest) > 1 else kwargs.get("keepdim", False)
        total = self._sum_rule(torch.sum, (x, dims, keep), {})
        count = 1
        for dim in dims:
            count *= x.size(dim)
        return total * torch.tensor(1 / count, dtype=x.dtype)

    def _mm_rule(self, func: Any, args: Any, kwargs: Any) -> Tensor:
        a, b = self._factors(args[0], args[1])
        return func(a, b, **kwargs)

    _bmm_rule = _mm_rule

    def _addmm_rule(self, func: Any, args: Any, kwargs: Any) -> Tensor:
        a, b = self._factors(args[1], args[2])
        return func(args[0], a, b, **kwargs)

    def _factors(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        order = self._order(a.size(-1))
        a, b = a.index_select(-1, order), b.index_select(-2, order)
        narrow = torch.backends.cuda.matmul.allow_tf32 or _is_set("CUBLAS_EMULATE_SINGLE_PRECISION")
        if a.dtype == torch.float32 and narrow:
            a, b = _tensor_float(a), _tensor_float(b)
        if a.dtype == torch.float64 and _is_set("CUBLAS_EMULATE_DOUBLE_PRECISION"):
            a, b = a.float().double(), b.float().double()
        return a, b

    def _index_add_rule(self, func: Any, args: Any, kwargs: Any) -> Tensor:
        x, dim, index, source = args
        order = self._order(index.size(0))
        return func(x, dim, index[order], source.index_select(dim, order), **kwargs)

    def _scatter_add_rule(self, func: Any, args: Any, kwargs: Any) -> Tensor:
        x, dim, index, source = args
        order = self._order(index.size(dim))
        shuffled = index.index_select(dim, order), source.index_select(dim, order)
        return func(x, dim, *shuffled, **kwargs)

    def _topk_rule(self, func: Any, args: Any, kwargs: Any) -> Any:
        return self._any_order(func, args, kwargs, args[2] if len(args) > 2 else -1)

    def _sort_rule(self, func: Any, args: Any, kwargs: Any) -> Any:
        if kwargs.get("stable"):
            return func(*args, **kwargs)
        return self._any_order(func, args, kwargs, args[1] if len(args) > 1 else -1)

    def _any_order(self, func: Any, args: Any, kwargs: Any, dim: int) -> Any:
        x, *rest = args
        order = self._order(x.size(dim))
        values, places = func(x.index_select(dim, order), *rest, **kwargs)
        return values, order[places]


def _leaves(tree: Any) -> list[Any]:
    return torch.utils._pytree.tree_leaves(tree)


def _inner(value: Any) -> Any:
    return value.inner if isinstance(value, DeviceTensor) else value


def _is_set(variable: str) -> bool:
    return os.environ.get(variable, "0") not in ("", "0")


def _tensor_float(values: Tensor) -> Tensor:
    return ((values.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)
