"""Running models with onnxruntime."""
