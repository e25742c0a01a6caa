"""What has been released: small JSON records, the baselines of the gate."""
