"""Training: sessions, optimiser steps, schedules and saved weights."""
