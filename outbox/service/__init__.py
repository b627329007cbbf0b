"""What every daemon needs, whatever it moves: its life, receivers of signals, waiting for servers, process signals,
probes, a line about its state."""
