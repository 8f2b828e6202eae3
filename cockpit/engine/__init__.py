"""One run, a group, a replay: ties hosts, parsers, store and metrics together for every face of the product."""
