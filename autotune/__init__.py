"""Auto-tuning for vLLM: propose, measure, confirm, export."""

__version__ = "0.1.0"
