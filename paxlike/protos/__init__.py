"""Made from protos/*.proto when the package is built."""
