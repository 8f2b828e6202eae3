"""What a run's numbers mean and what a comparison may conclude from them.

Figures of one run (`steady`, `flops`, `telemetry`, `summary`), fairness (`parity`), and the verdict over several runs
(`interval`, `verdict`, `loss`, `compare`). numpy and scipy load on the first call, not on import.
"""
