"""Costs of the simulator on this machine, compared with rivals in the same process, in turn."""
