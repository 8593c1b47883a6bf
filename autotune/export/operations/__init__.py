"""What a server needs beside its start: alerts, a dashboard, a front, autoscaling, warm-up."""
