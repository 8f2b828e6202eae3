"""GPT training with megatron-core: model, schedules and datasets are its own, the device is a Backend's."""
