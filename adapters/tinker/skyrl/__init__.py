"""SkyRL behind a bridge that translates between the SDK and SkyRL's version of the Tinker API."""
