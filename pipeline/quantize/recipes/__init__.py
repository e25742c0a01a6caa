"""The recipes, one file each. To add one: write its file and name it in ``pipeline.quantize.registry``."""
