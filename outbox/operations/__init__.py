"""The work of operators, behind the commands and the admin: numbers (`stats`), checks of the configuration (`check`),
retry, skip, pause and so on (`actions`), changes of a record (`editing`). Of consumers: held messages (`held`),
`positions` and `replays`. Nothing here harvests or consumes."""
