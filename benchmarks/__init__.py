"""Measurements: `make bench`. They check no figure, only that the measured programs have worked."""
