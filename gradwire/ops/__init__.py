"""The operations of algorithms: plain functions of tensors. The implementation is chosen by device, here alone.

`backend` is the record of all functions that have several implementations: `reference` defines them in torch, `native`
is C++ for CPUs, `triton` for GPUs. `formats` and `entries` are the layouts of payloads.
"""
