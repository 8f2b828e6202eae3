"""`python -m cockpit.cli`, for an interpreter whose scripts are not on PATH."""

from cockpit.cli import script

script()
