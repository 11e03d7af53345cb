"""Checks of a cluster, which `gradwire doctor` runs on the ranks of a job."""
