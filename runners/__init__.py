"""What runs on a server: `python -m runners stage=train training=rocm`. Never imports the cockpit."""
