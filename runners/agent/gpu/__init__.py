"""GPU sensors: one module a source, tried in order in a process of their own, so that no driver can end the agent."""
