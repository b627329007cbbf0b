"""How much waits and how old it is, for people. Never asked while records are on their way."""
