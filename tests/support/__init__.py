"""Helpers that tests share: inputs, doubles of disks and transports, crashes, and other programs."""
