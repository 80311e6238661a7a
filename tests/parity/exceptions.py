"""Rows that compare no numbers with the reference: those in which it raises, and those that are decided by chance."""

# Errors of the reference in rows whose oracle then has nothing to check; any other error fails the row.
RAISES = {
    (
        "HierarchicalVQ",
        "targets",
    ): "AssertionError: reconstruction-from-indices path not implemented",
    ("HierarchicalVQ", "half precision"): "RuntimeError: Input type (c10::BFloat16) and bias type",
    ("HierarchicalVQ", "frozen"): "TypeError: HierarchicalVQ.forward() got an unexpected keyword",
    ("FSQ", "sixteen features"): "RuntimeError: ",
    ("FSQ", "single latents"): "EinopsError: Error while processing rearrange-reduction patte",
    ("FSQ", "masked"): "TypeError: FSQ.forward() got an unexpected keyword argument",
    ("FSQ", "masked, projected"): "TypeError: FSQ.forward() got an unexpected keyword argument",
    ("FSQ", "bfloat16 module"): "RuntimeError: mat1 and mat2 must have the same dtype, but got",
    ("FSP", "many codes"): "RuntimeError: ZeroDivisionError",
    ("FSP", "bfloat16"): "RuntimeError: mat1 and mat2 must have the same dtype, but got",
    ("FSP", "no tokens"): "RuntimeError: cannot reshape tensor of 0 elements into shape",
    (
        "LatentQuantize",
        "values learn",
    ): "RuntimeError: element 0 of tensors does not require grad and d",
    (
        "LatentQuantize",
        "in place",
    ): "AttributeError: 'LatentQuantize' object has no attribute 'optimi",
    ("LatentQuantize", "no tokens"): "RuntimeError: cannot reshape tensor of 0 elements into shape",
    ("LatentQuantize", "no weights"): "TypeError: must be real number, not NoneType",
    ("BinaryMapper", "bfloat16"): "RuntimeError: expected scalar type Float but found BFloat16",
    (
        "RandomProjectionQuantizer",
        "mask",
    ): "TypeError: RandomProjectionQuantizer.forward() got an unexp",
    (
        "RandomProjectionQuantizer",
        "no tokens",
    ): "RuntimeError: cannot reshape tensor of 0 elements into shape",
    ("RandomProjectionQuantizer", "channel first"): "RuntimeError: Given normalized_shape=",
    (
        "ResidualFSQ",
        "channel first",
    ): "AxisSizeError: Failed to determine the size of all axes in the",
    (
        "ResidualFSQ",
        "channel first, all codes",
    ): "AxisSizeError: Failed to determine the size of all axes in the",
    ("ResidualFSQ", "image"): "AxisSizeError: Failed to determine the size of all axes in the",
    (
        "ResidualFSQ",
        "single latents",
    ): "EinopsError: Error while processing rearrange-reduction patte",
    ("ResidualFSQ", "masked"): "TypeError: ResidualFSQ.forward() got an unexpected keyword",
    (
        "ResidualFSQ",
        "masked, projected",
    ): "TypeError: ResidualFSQ.forward() got an unexpected keyword",
    (
        "ResidualFSQ",
        "index outside",
    ): "CallOperationError: The function that was compiled for this operatio",
    ("ResidualFSQ", "large codebooks"): "RuntimeError: ",
    (
        "GroupedResidualFSQ",
        "groups, image",
    ): "RuntimeError: The size of tensor a (5) must match the size of",
    (
        "GroupedResidualFSQ",
        "groups, image, projected",
    ): "RuntimeError: mat1 and mat2 shapes cannot be multiplied (48x5",
    (
        "GroupedResidualFSQ",
        "groups, dropout",
    ): "TypeError: GroupedResidualFSQ.forward() got an unexpected k",
    (
        "ResidualLFQ",
        "one token per item",
    ): "EinopsError: Error while processing rearrange-reduction patte",
    ("SimVQ", "mask"): "TypeError: SimVQ.forward() got an unexpected keyword argume",
    ("SimVQ", "no tokens"): "RuntimeError: cannot reshape tensor of 0 elements into shape",
    ("SimVQ", "bfloat16"): "NotImplementedError: \"cdist\" not implemented for 'BFloat16'",
    ("ResidualSimVQ", "mask"): "TypeError: ResidualSimVQ.forward() got an unexpected keywor",
    ("ResidualSimVQ", "no tokens"): "RuntimeError: cannot reshape tensor of 0 elements into shape",
    ("ResidualVQ", "image"): "RuntimeError: Sizes of tensors must match except in dimension",
    (
        "ResidualVQ",
        "image, projected",
    ): "RuntimeError: mat1 and mat2 shapes cannot be multiplied (48x4",
    (
        "ResidualVQ",
        "image, channel_last False",
    ): "RuntimeError: Sizes of tensors must match except in dimension",
    ("ResidualVQ", "volume"): "RuntimeError: Sizes of tensors must match except in dimension",
    (
        "ResidualVQ",
        "channel first",
    ): "RuntimeError: Sizes of tensors must match except in dimension",
    (
        "ResidualVQ",
        "channel first, projected",
    ): "RuntimeError: mat1 and mat2 shapes cannot be multiplied (16x6",
    (
        "ResidualVQ",
        "two position axes",
    ): "RuntimeError: Size does not match at dimension 0 expected inde",
    ("ResidualVQ", "heads"): "AssertionError: residual vq is not compatible with multi-headed",
    ("ResidualVQ", "given indices"): "ValueError: not enough values to unpack (expected 3,",
    (
        "ResidualVQ",
        "given indices, some absent",
    ): "AssertionError: some of the residual vq indices were dropped out",
    ("ResidualVQ", "given indices, image"): "AssertionError: ",
    (
        "ResidualVQ",
        "bfloat16 input, float32 projection",
    ): "RuntimeError: mat1 and mat2 must have the same dtype, but got",
    (
        "ResidualVQ",
        "float64 input, float32 projection",
    ): "RuntimeError: mat1 and mat2 must have the same dtype, but got",
    (
        "GroupedResidualVQ",
        "groups, image",
    ): "RuntimeError: Sizes of tensors must match except in dimension",
    ("GroupedResidualVQ", "groups, channel first"): "AssertionError: ",
    (
        "VectorQuantize",
        "masked, projected",
    ): "RuntimeError: The size of tensor a (4) must match the size of",
    (
        "VectorQuantize",
        "masked, shared heads",
    ): "RuntimeError: The size of tensor a (3) must match the size of",
    (
        "VectorQuantize",
        "masked, separate heads",
    ): "RuntimeError: The size of tensor a (3) must match the size of",
    (
        "VectorQuantize",
        "lengths, channel first",
    ): "RuntimeError: The size of tensor a (0) must match the size of",
    (
        "VectorQuantize",
        "everything masked, separate heads",
    ): "RuntimeError: The size of tensor a (3) must match the size of",
    ("VectorQuantize", "cross-entropy commitment, image"): "RuntimeError: Expected target size",
    (
        "VectorQuantize",
        "cross-entropy commitment, single tokens",
    ): "RuntimeError: Expected target size",
    (
        "VectorQuantize",
        "loss is not state, no commitment",
    ): "RuntimeError: a leaf Variable that requires grad is being used",
    (
        "VectorQuantize",
        "decode, shared heads",
    ): "RuntimeError: mat1 and mat2 shapes cannot be multiplied (24x3",
    (
        "VectorQuantize",
        "decode, projected channel first",
    ): "RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x6 a",
    (
        "VectorQuantize",
        "codebook is set, learnable",
    ): "RuntimeError: a leaf Variable that requires grad is being used",
    (
        "VectorQuantize",
        "affine, trained state",
    ): "RuntimeError: Error(s) in loading state_dict for VectorQuantiz",
    (
        "VectorQuantize",
        "bfloat16 input, float32 projection",
    ): "RuntimeError: mat1 and mat2 must have the same dtype, but got",
    (
        "VectorQuantize",
        "float64 input, float32 projection",
    ): "RuntimeError: mat1 and mat2 must have the same dtype, but got",
    (
        "VectorQuantize",
        "synchronised in one process",
    ): "ValueError: Default process group has not been initi",
    (
        "VectorQuantize",
        "affine, synchronised in one process",
    ): "ValueError: Default process group has not been initi",
}

# Rows whose numbers are random, or depend on rounding, or whose oracle makes its own input: with the switch, the oracle
# must reject torchvq, and no numbers are compared.
BY_CHANCE = {
    ("HierarchicalVQ", "k-means"),
    ("HierarchicalVQ", "dropped"),
    ("HierarchicalVQ", "dropped, own"),
    ("BinaryMapper", "evaluation"),
    ("BinaryMapper", "temperature"),
    ("FSQ", "noise of half a step"),
    ("FSQ", "a tenth of the elements"),
    ("FSQ", "all elements"),
    ("LatentQuantize", "losses"),
    ("ResidualFSQ", "gain of eight"),
    ("ResidualFSQ", "noise"),
    ("ResidualVQ", "diveq, variance"),
    ("ResidualVQ", "frozen at construction, dead codes"),
    ("ResidualVQ", "k-means, few tokens"),
    ("VectorQuantize", "k-means, few tokens"),
    ("VectorQuantize", "used codes stay"),
}
