"""Recording: one compressed file of snapshots, written while gpuwatch runs and read by `gpuwatch replay`."""
