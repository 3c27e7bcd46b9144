"""Toolkit for adapter authors: losses and checks that training backends share."""
