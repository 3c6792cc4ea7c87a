"""Batches on a device: whole frames are copied one ahead, and a slot goes back when its copy is done."""
