"""The few numbers of each algorithm, written once for floats on the host and for arrays on a device."""
