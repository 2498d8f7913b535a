"""Unpacks what a CPU needs of PyTorch's wheels: headers and libraries, no Python and no CUDA kernels.

Called by `cargo xtask torch-test` with the folder of the wheels and the one to unpack to."""

import glob
import os
import sys
import zipfile

wheels, target = sys.argv[1:]
# libtorch_cpu.so needs CUDA's runtime and profiler to load, in a folder beside torch's.
KEPT = ("torch/include/", "torch/lib/libtorch_cpu.so", "torch/lib/libc10.so", "torch/lib/libgomp")
KEPT_ENDS = ("/libcudart.so.13", "/libcupti.so.13")
for wheel in glob.glob(os.path.join(wheels, "*.whl")):
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.startswith(KEPT) or name.endswith(KEPT_ENDS):
                archive.extract(name, target)
# torch-sys links `-ltorch`, which the wheel has only with CUDA.
with open(os.path.join(target, "torch/lib/libtorch.so"), "w") as script:
    script.write("INPUT(libtorch_cpu.so)\n")
