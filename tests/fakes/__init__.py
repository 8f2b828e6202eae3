"""Driver libraries made at test time: the doors of the vendors, with values that a test writes."""
