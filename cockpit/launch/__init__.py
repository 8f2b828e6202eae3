"""Launchers: each turns a planned run into what the agent starts. Pure; they do not know each other."""
