"""What every daemon needs, whatever it moves: receivers of signals, waiting for servers, a line about its state."""
