"""Pure decisions: no clock, I/O, threads, randomness, logging or Django.

Inputs are method calls, outputs are returned values, time is a monotonic float argument, identifiers enter by the
constructor. Nothing here imports another part of the project, so the same classes run in production and in simulation.
"""
