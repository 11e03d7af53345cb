"""The running core: store, machine, executor, and the runtime that joins them for the front ends."""
