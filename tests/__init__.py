"""Tests, laid out as the mirror of paxlike/."""
