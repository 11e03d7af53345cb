"""States of jobs for torch.distributed.checkpoint, and for ranks that come and go."""
