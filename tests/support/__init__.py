"""What tests share: inputs, doubles of disks and transports, crashes, and the world outside."""
