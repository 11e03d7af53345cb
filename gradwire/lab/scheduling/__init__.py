"""The published job of Cupcake, to simulate."""
