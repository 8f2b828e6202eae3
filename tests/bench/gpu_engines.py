"""What a user would train with instead, on this machine's GPU: transformers' Llama, compiled or with Liger.

    python -m tests.bench.gpu_engines ENGINE MODEL SEQUENCE MICRO_BATCH [...]

ENGINE is autocast (fp32 weights, bf16 autocast), compile (the same under torch.compile), liger (bf16 weights without
fp32 master weights, Liger's kernels and its fused loss) or bf16 (the same without Liger). MODEL is 1b or 3b (Llama
3.2's shapes). Random weights, random tokens, torch's fused AdamW, SDPA attention, a micro batch a step. Prints JSON
for each micro batch: medians over 12 steps after 4, TFLOP/s by convention B.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

import torch

SHAPES = {
    "1b": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32},
    "3b": {"hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28, "num_attention_heads": 24},
}
VOCAB, KV_HEADS = 128256, 8
WARM_UP, STEPS = 4, 12


def model(engine: str, shape: dict[str, int], sequence: int) -> Any:
    """transformers' Llama on the GPU, as `engine` wants it."""
    if engine == "liger":
        from liger_kernel.transformers import apply_liger_kernel_to_llama

        apply_liger_kernel_to_llama()
    from transformers import LlamaConfig, LlamaForCausalLM

    options: dict[str, Any] = {**shape, "attn_implementation": "sdpa"}
    settings = LlamaConfig(
        **options,
        num_key_value_heads=KV_HEADS,
        vocab_size=VOCAB,
        max_position_embeddings=sequence,
        tie_word_embeddings=True,
    )
    with torch.device("cuda"):
        found = LlamaForCausalLM(settings)
    return found.to(torch.bfloat16 if engine in ("liger", "bf16") else torch.float32).train()


def flops_per_token(shape: dict[str, int], sequence: int) -> float:
    """Convention B: 6 P + 6 L h s."""
    hidden, layers = shape["hidden_size"], shape["num_hidden_layers"]
    head = hidden // shape["num_attention_heads"]
    each = 2 * hidden * hidden + 2 * hidden * KV_HEADS * head + 3 * hidden * shape["intermediate_size"]
    return 6.0 * (layers * each + VOCAB * hidden) + 6.0 * layers * hidden * sequence


def measure(engine: str, name: str, sequence: int, batch: int) -> dict[str, Any]:
    """Train a few steps; medians."""
    shape = SHAPES[name]
    torch.manual_seed(1)
    net = model(engine, shape, sequence)
    adam = torch.optim.AdamW(net.parameters(), lr=1e-5, fused=True)
    forward = torch.compile(net) if engine == "compile" else net
    tokens = torch.randint(0, VOCAB, (batch, sequence), device="cuda")
    seconds = []
    for _ in range(WARM_UP + STEPS):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16, enabled=engine in ("autocast", "compile")):
            loss = forward(input_ids=tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0, foreach=True)
        adam.step()
        adam.zero_grad()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    step_s = statistics.median(seconds[WARM_UP:])
    rate = batch * sequence / step_s
    return {
        "step_ms": round(step_s * 1e3, 1),
        "least_ms": round(min(seconds[WARM_UP:]) * 1e3, 1),
        "greatest_ms": round(max(seconds[WARM_UP:]) * 1e3, 1),
        "tokens_per_s_gpu": round(rate),
        "tflops_b": round(rate * flops_per_token(shape, sequence) / 1e12, 1),
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1),
    }


def main() -> None:
    """The command."""
    engine, name, sequence, *batches = sys.argv[1:]
    for batch in batches:
        told: dict[str, Any] = {"engine": engine, "model": name, "sequence": int(sequence), "micro_batch": int(batch)}
        try:
            told |= measure(engine, name, int(sequence), int(batch))
        except torch.OutOfMemoryError:
            told["error"] = "out of memory"
        print(json.dumps(told), flush=True)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


if __name__ == "__main__":
    main()
