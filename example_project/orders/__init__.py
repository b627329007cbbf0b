"""The orders service: it announces its orders, and stores the receipts that the payments service sends back."""
