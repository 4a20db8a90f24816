"""What parity knows of torch's backends, one file each, called as torch calls the device. Another one is one more file with a
`BACKEND`; `parity.core.devices` finds it by its name."""
