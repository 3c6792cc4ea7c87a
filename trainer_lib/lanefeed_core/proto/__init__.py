"""The wire protocol (`lanefeed.proto`) and what protoc generates from it; `make proto` writes the generated files."""
