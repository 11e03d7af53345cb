"""What is run and compared: models, recipes, published suites and trainings."""
