"""Events, run state, records and errors: what every layer speaks in. Standard library only."""
