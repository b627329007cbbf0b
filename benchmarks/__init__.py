"""Measurements: `make bench`. Nothing here is asserted, except that what was measured had worked."""
