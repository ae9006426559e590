"""Base: text, units, files, errors, children, threads, and /proc; knows neither NVML nor a snapshot."""
