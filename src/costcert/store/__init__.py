"""Votes (table 1) and certificates (table 2) on disk and at URLs."""
