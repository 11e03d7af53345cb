"""What ranks keep from step to step: residuals and other memories, by slot."""
