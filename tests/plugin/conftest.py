"""The plugin's tests run pytest inside pytest."""

pytest_plugins = ["pytester"]
