"""Jobs that each rank runs: step times, trainings, the search for a plan."""
