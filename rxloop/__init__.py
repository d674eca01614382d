"""rxloop."""
