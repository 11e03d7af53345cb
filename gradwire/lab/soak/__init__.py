"""Long runs under random faults."""
