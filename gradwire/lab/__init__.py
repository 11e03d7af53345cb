"""The lab: emulated networks, workloads, models, and the jobs that compare configurations on them."""
