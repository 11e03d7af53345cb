"""The running core: the plan in force, steps, exchanges, state, a worker, failures, and the runtime that joins them."""
