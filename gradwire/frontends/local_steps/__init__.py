"""Local steps: replicas train by themselves, and average what they have moved."""
