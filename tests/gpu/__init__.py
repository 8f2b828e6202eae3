"""GPU sources of the agent, against drivers made at test time and captures of real machines."""
