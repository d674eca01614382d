"""The adapters: one wire protocol each. Import the one that you need; its SDK is an extra."""
