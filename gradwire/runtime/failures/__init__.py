"""Errors that end a job, who is to blame for them, and the thread that watches for lost ranks."""
