"""Element-wise kernels in Triton, one source for CUDA and ROCm, each beside its plain formula in torch.

A kernel reads and writes what it must once: that, not arithmetic, is what such work costs on a GPU. Sums are in fp32,
results in the tensors' own type. tests/runners/test_kernels.py holds each against its plain formula in Triton's
interpreter, tests/bench/kernels.py on a GPU.
"""

from __future__ import annotations
