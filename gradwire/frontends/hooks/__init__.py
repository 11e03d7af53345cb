"""Gradients taken by autograd hooks, of models that no framework reduces."""
