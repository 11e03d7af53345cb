"""Experiments: comparisons of configurations, recipes, published suites and trainings."""
