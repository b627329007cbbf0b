"""The payments service: it makes one payment for each order, and announces its receipt."""
