"""The signatures of published write-ups of speculative decoding, all over Forerun's own rules.

numpy_verify   `speculative_decoding_verify`: one round, NumPy rows, bonus where there is a row
torch_verify   `speculative_decode`: one round, Torch tensors, never a bonus
coin_round     `speculative_decode`: one round decided by coins that the caller brings
numpy_loop     `speculative_sampling`: rounds over two model functions, exactly N tokens
decoder        `SpeculativeDecoder`: rounds over two transformers models, a batch of texts

Nothing is imported here: two of them share a name, and one of them needs torch.
"""
