"""The transactional producer, the ledger topic and the brokers' transaction log."""
