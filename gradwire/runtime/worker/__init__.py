"""The thread and the stream on which all reducing is done, with their events and graphs."""
