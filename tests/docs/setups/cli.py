import subprocess

import numpy as np

import torchvq

np.save("vectors.npy", np.random.default_rng(0).normal(size=(3000, 49)).astype("f4"))
for options in (
    "--codebook-size 1024 -o codec.safetensors",
    "--codebook-size 256 --levels 8 -o residual.safetensors",
    "--method fsq --quantizer-levels 8,5,5,5 --groups 2 -o fsq.safetensors",
):
    command = ["torchvq", "fit", "vectors.npy", "--quiet", *options.split()]
    more = [] if "fsq" in options else ["--iterations", "1"]
    subprocess.run(command + more, check=True)
