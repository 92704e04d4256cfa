"""Constructors of optimizers."""
