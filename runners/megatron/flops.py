"""Moved to runners.sizes; the old name, until the last caller is gone."""

from runners.sizes import CONVENTION, matmul_parameters, padded_vocab, parameters, per_token

__all__ = ["CONVENTION", "matmul_parameters", "padded_vocab", "parameters", "per_token"]
