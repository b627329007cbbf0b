"""Journals: what an append does next, its registers, offsets and hashes, and where a reader reads. Pure."""
