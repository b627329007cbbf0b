"""What consumers do on Django's connection: their positions, and the transaction around their functions."""
