"""Gradwire under other trainers, in one line each; every module here needs its framework: `gradwire.integrations.`
`lightning`, `huggingface` (Trainer), `accelerate`, `deepspeed`, `megatron`, `ray` and `torchft`.

Trainers save what rank 0 has. So each of these saves the state of all ranks there, which any number of ranks can load.
"""
