"""All that Gradwire uses of torch and is not public there. A test runs each of these against the oldest and the newest
torch that pyproject.toml claims."""
