"""torchvq: vector quantization for neural tokenizers."""

from importlib import import_module
from types import ModuleType

from torchvq._codebook.collapse import CollapseLimits, CollapseWarning
from torchvq._codebook.stats import CodebookStats
from torchvq._library import cmake_prefix_path
from torchvq._tools.kmeans import KmeansOutput, kmeans
from torchvq._tools.precision_report import Precision, precision_report
from torchvq._tools.recommended import recommended
from torchvq._tools.refine import Refinement, refine
from torchvq._tools.replicas import ReplicaDifference, verify_replicas
from torchvq._version import __version__
from torchvq.binary_mapper import BinaryMapper
from torchvq.evo_lookup_free_quantization import EvoLFQ
from torchvq.finite_scalar_perturbation import FSP
from torchvq.finite_scalar_quantization import FSQ
from torchvq.grouped_residual_fsq import GroupedResidualFSQ
from torchvq.grouped_residual_lfq import GroupedResidualLFQ
from torchvq.grouped_residual_vq import GroupedResidualVQ
from torchvq.hierarchical_vq import HierarchicalVQ
from torchvq.latent_quantization import LatentQuantize
from torchvq.lookup_free_quantization import LFQ
from torchvq.monitor import Monitor
from torchvq.outputs import LossBreakdown
from torchvq.random_projection_quantizer import RandomProjectionQuantizer
from torchvq.residual_fsq import ResidualFSQ
from torchvq.residual_lfq import ResidualLFQ
from torchvq.residual_sim_vq import ResidualSimVQ
from torchvq.residual_vq import ResidualVQ
from torchvq.sequential import Sequential
from torchvq.sim_vq import SimVQ
from torchvq.vector_quantize import VectorQuantize

__all__ = [
    "FSP",
    "FSQ",
    "LFQ",
    "BinaryMapper",
    "CodebookStats",
    "CollapseLimits",
    "CollapseWarning",
    "EvoLFQ",
    "GroupedResidualFSQ",
    "GroupedResidualLFQ",
    "GroupedResidualVQ",
    "HierarchicalVQ",
    "KmeansOutput",
    "LatentQuantize",
    "LossBreakdown",
    "Monitor",
    "Precision",
    "RandomProjectionQuantizer",
    "Refinement",
    "ReplicaDifference",
    "ResidualFSQ",
    "ResidualLFQ",
    "ResidualSimVQ",
    "ResidualVQ",
    "Sequential",
    "SimVQ",
    "VectorQuantize",
    "__version__",
    "cmake_prefix_path",
    "kmeans",
    "precision_report",
    "recommended",
    "refine",
    "verify_replicas",
]


def __getattr__(name: str) -> ModuleType:
    # Importing the reference makes its modules attributes of it; no class above imports these two.
    if name in ("utils", "vector_quantize_pytorch"):
        return import_module(f"torchvq.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
