"""Names of configurations that are no compressors, and their parts; nothing here loads torch."""

DENSE, DDP = "dense", "ddp"
NOCOMM = "nocomm"
AUTO = "auto"
LOCAL = "localsteps"
PLAN = "plan:"
PLANNED = "planned"
