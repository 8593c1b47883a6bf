"""Engines for prefill and decode against replicas on the same simulated GPUs."""
