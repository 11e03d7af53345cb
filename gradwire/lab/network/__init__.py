"""An emulated network of hosts, each behind a link."""
