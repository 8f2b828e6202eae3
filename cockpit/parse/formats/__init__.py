"""The formats, one a file; each has NAME, NEEDLES and match (see cockpit/parse/context.py)."""
