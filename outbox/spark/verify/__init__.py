"""The proof from topics, ledger and table that nothing was lost, doubled or reordered."""
