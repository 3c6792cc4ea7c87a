"""The cluster's shell of reconcile: kopf watches, a keyed queue, one pass of one job at a time. Decides nothing."""
