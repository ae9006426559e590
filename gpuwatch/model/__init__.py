"""Model: the snapshot, the table of fields, declared shares, filters, and the live file's types."""

from gpuwatch.model.snapshot import encode as encode
