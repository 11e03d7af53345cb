"""What algorithms compute with: plain functions of tensors. Which implementation runs on which device is chosen here.

`reference` defines the passes over a gradient in torch, `native` is the same in C++ for CPUs; `formats` says how their
payloads are laid out.
"""
