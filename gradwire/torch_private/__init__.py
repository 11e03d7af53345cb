"""All non-public calls of torch that Gradwire makes. A test runs each of these against the oldest and the newest
torch that pyproject.toml claims."""
