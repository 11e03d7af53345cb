"""FSDP2: gradients between replicas of sharded models, and collectives inside them."""
