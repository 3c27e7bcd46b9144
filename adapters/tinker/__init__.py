"""Training on the Tinker service, and on servers that speak its API, through the official SDK."""
