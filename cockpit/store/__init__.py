"""The runs folder: run directories, journals, groups and the index. The one place that knows file names."""
