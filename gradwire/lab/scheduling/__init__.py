"""What others published about scheduling: their profiles, the regimes that they assume, and the rules by which they
plan. Benchmarks and tests set the scheduler beside them."""
