"""GGUF files: their header, their tensors, their tokenizer, and the same model in another form."""
