"""Published schedulers: their profiles, the regimes that they assume, and their rules, with which benchmarks and tests
compare ours."""
