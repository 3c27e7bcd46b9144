"""Reinforcement learning: rollouts and policy gradients."""
