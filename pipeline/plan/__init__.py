"""What a model needs before anything runs: ``memory`` of one device, ``scale``: what several would bring."""
