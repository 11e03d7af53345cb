"""What each rank of a job runs: step times, trainings, the search for a plan."""
