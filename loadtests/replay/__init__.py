"""Recorded traces as traffic: read (``formats``), scaled to a server and a model's context (``scale``), put into words
(``blocks``). Only times, lengths and which prefixes are shared come from a trace, never its text."""
