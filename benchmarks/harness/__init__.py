"""What the simulator costs on this machine, beside rivals measured in the same process, in turn."""
