"""Readers of annotation formats, one file each. `own_data` chooses among them."""
