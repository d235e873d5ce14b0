"""Where a sweep's jobs run: in processes on this machine, or on a Ray cluster."""
