"""One script a question, in rooms; README.md says which."""
