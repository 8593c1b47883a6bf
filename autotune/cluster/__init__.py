"""Trials on the nodes of a cluster. The driver keeps the study; a node gets a task as JSON and sends a record back."""
