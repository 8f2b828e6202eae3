"""Log bytes to events: one parser of streams, one file a format."""
