"""Steps: gradients that arrive, the script of collectives, and the verdict."""
