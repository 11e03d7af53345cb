"""The plan in force, and the controller that changes it."""
