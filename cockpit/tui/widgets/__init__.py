"""Panels of a screen, painted line by line."""
