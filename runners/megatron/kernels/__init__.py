"""Element-wise kernels in Triton, one source for CUDA and ROCm, each beside its plain formula in torch.

A kernel reads and writes what it must once: that, not arithmetic, is what such work costs on a GPU. Sums are in fp32,
results in the tensors' own type. tests/bench/kernels.py compares each with its plain formula, on a GPU or in Triton's
interpreter.
"""

from __future__ import annotations
