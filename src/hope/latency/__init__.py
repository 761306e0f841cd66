"""The latency of a network on this machine: measured operators, predicted networks."""
