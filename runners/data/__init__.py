"""Text to tokens: corpus -> byte-level BPE -> megatron-core's indexed files -> samples."""
