"""Projects that few need: each folder has a README, an owner and a test. Nothing of the packages imports it."""
