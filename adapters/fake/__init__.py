"""Working fakes of every port, in memory: no files, no network, no GPU."""
