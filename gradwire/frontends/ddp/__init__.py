"""DDP: its hook, its buckets, and steps that it reduces by itself."""
