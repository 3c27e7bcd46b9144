"""The engine: plans, runs and resumes workflows."""
