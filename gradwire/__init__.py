"""Gradwire: compressed data-parallel training for PyTorch."""
