"""The agent, our one file on a server: works a queue, samples the machine. Standard library, Python 3.8 on."""

VERSION = "0.1.0"
QUEUE_SCHEMA = "ekvi.queue/1"
TELEMETRY_SCHEMA = "ekvi.gpu/1"
