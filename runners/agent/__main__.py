"""`python -m runners.agent COMMAND`: the agent from a checkout, without packing it."""

from .main import main

if __name__ == "__main__":
    raise SystemExit(main())
