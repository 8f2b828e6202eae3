"""GPT training with megatron-core: the model, the schedules and the datasets are its own, the device is a Backend's."""
