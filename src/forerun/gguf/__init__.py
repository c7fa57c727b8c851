"""GGUF files: reading their header, tensors and tokenizer, and converting them for transformers."""
